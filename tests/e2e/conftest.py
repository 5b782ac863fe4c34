"""A workspace for each test; the output of its processes is printed when one of them failed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workspace import ADMIN_TOKEN, Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("SPRINGTIDE_TOKENS", f"admin={ADMIN_TOKEN}")
    made = Workspace(tmp_path)
    yield made
    made.close()
    if any(process.returncode not in (0, None, -signal.SIGTERM, -signal.SIGKILL) for process in made.processes):
        for out in sorted(tmp_path.glob("*.out")):
            print(f"--- {out.name}\n{out.read_text()[-2000:]}")
