"""A workspace for each test; the output of its processes is printed when one of them failed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workspace import Workspace
from tests.support.process_pool import ProcessPool


@pytest.fixture
def workspace(tmp_path: Path, process_pool: ProcessPool) -> Iterator[Workspace]:
    made = Workspace(tmp_path, process_pool)
    yield made
    made.close()
    if any(process.returncode not in (0, None, -signal.SIGTERM, -signal.SIGKILL) for process in made.processes):
        for out in sorted([*tmp_path.glob("*.out"), *tmp_path.glob("*.err")]):
            print(f"--- {out.name}\n{out.read_text()[-2000:]}")
