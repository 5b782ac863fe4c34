"""A process that forks while the spill's process starts: neither waits until the other ends."""

import multiprocessing
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.record_kinds import ROW
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide_client.rows.row_block import RowBlock


def test_a_fork_waits_for_the_start_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    over = context.Event()
    worker = context.Process(target=over.wait)
    forker = threading.Thread(target=worker.start)
    forked_amid: list[bool] = []

    def start(*arguments: Any, **options: Any) -> Any:
        forker.start()
        forker.join(0.3)  # a fork that does not wait has finished by then
        forked_amid.append(not forker.is_alive())
        return popen(*arguments, **options)

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    spill = RocksSpill(tmp_path / "spill", dim=2, state_width=0)
    spill.write(RowBlock.zeros(1, 2, 0), 1)
    spill._worker.drain()
    assert spill.find(np.zeros(1, np.uint16), np.zeros(1, np.int64)).kinds_U.tolist() == [ROW]
    spill.close()
    forker.join()
    over.set()
    worker.join()
    assert forked_amid == [False]


def test_a_forked_copy_of_a_spill_does_nothing(tmp_path: Path) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=2, state_width=0)
    spill.write(RowBlock.zeros(1, 2, 0), 1)
    spill.drain()

    def misuse() -> None:
        with pytest.raises(SpillError, match="belongs to another process"):
            spill.find(np.zeros(1, np.uint16), np.zeros(1, np.int64))
        with pytest.raises(SpillError, match="belongs to another process"):
            spill.write(RowBlock.zeros(1, 2, 0), 1)
        spill.close()

    worker = multiprocessing.get_context("fork").Process(target=misuse)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert spill.find(np.zeros(1, np.uint16), np.zeros(1, np.int64)).kinds_U.tolist() == [ROW]
    assert spill.counters()["spill_starts"] == 1
    spill.close()
