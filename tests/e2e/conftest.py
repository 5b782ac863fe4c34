"""A workspace for each test; what its processes said is shown when one of them failed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    space = Workspace(tmp_path)
    yield space
    space.close()
    if any(process.returncode not in (0, None, -signal.SIGTERM, -signal.SIGKILL) for process in space.processes):
        for out in sorted(tmp_path.glob("*.out")):
            print(f"--- {out.name}\n{out.read_text()[-2000:]}")
