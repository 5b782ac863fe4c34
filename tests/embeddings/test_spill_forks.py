"""A process that forks while the spill's process starts: neither waits for the other's end."""

import multiprocessing
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings.rows import Rows
from embeddings.spill import ROW
from embeddings.spill_rocksdb import RocksSpill


def test_a_fork_waits_until_the_spills_process_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    over = context.Event()
    worker = context.Process(target=over.wait)
    forker = threading.Thread(target=worker.start)
    forked_amid: list[bool] = []

    def start(*arguments: Any, **options: Any) -> Any:
        forker.start()
        forker.join(0.3)  # a fork that does not wait is done by then
        forked_amid.append(not forker.is_alive())
        return popen(*arguments, **options)

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    spill = RocksSpill(tmp_path / "spill", dim=2, state_width=0)
    spill.write(Rows.empty(1, 2, 0), 1)
    spill._keeper.drain()
    assert spill.find(np.zeros(1, np.uint16), np.zeros(1, np.int64)).kinds.tolist() == [ROW]
    spill.close()
    forker.join()
    over.set()
    worker.join()
    assert forked_amid == [False]
