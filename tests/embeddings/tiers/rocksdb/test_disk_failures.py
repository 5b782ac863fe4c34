"""Whatever the disk does, a call soon returns the right rows or raises a SpillError that says what to do."""

import importlib.util
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from tests.embeddings.tiers.spill_support import (
    assert_fails,
    assert_found,
    await_start,
    find,
    impatient,
    kill,
    numbered_rows,
)

DIM, WIDTH = 16, 1
FOREVER = resource.RLIM_INFINITY


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[RocksSpill]:
    made = RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH, queue_bytes=1 << 20)
    yield made
    made.close()


def limit_files(spill: RocksSpill, num_bytes: int) -> None:
    """Limit the size of the process's files, which looks to it like a full disk."""
    process = spill._worker._process
    assert process is not None
    resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (num_bytes, FOREVER))


def fill(spill: RocksSpill, written: list[int]) -> None:
    """Write batches of 1,000 new rows until the spill takes no more."""
    while True:
        spill.write(numbered_rows(np.arange(1000 * len(written), 1000 * len(written) + 1000), DIM, WIDTH), 1000)
        written.append(len(written))


def test_a_full_disk_stops_writes_until_there_is_room(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(1000), DIM, WIDTH), 1000)
    spill.drain()
    limit_files(spill, 200_000)
    written = [0]
    assert_fails(spill, r"takes no rows: .*File too large.* - raise the limit", lambda: fill(spill, written))
    num = len(written)
    assert_found(spill, numbered_rows(np.arange(1000 * num), DIM, WIDTH))
    assert not spill.has_room(1000)
    limit_files(spill, FOREVER)
    assert spill.has_room(1000, 30.0)
    last = numbered_rows(np.arange(200_000, 201_000), DIM, WIDTH)
    spill.write(last, 1000)
    spill.drain()
    assert_found(spill, last)
    assert_found(spill, numbered_rows(np.arange(1000 * num), DIM, WIDTH))
    assert spill.counters()["spill_starts"] == 1


def test_several_writes_for_which_there_was_room_do_not_fail_on_a_full_disk(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(1000), DIM, WIDTH), 1000)
    spill.drain()
    limit_files(spill, 1)
    num = 1000
    with impatient(spill):
        while spill.has_room(3):
            for _ in range(3):
                spill.write(numbered_rows(np.arange(num, num + 1), DIM, WIDTH), 1)
                num += 1
        with pytest.raises(SpillError, match="takes no rows"):
            spill.write(numbered_rows(np.arange(num, num + 1), DIM, WIDTH), 1)
    assert_found(spill, numbered_rows(np.arange(num), DIM, WIDTH))


def test_a_stall_on_a_full_disk_is_reported_long_before_patience_ends(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(1000), DIM, WIDTH), 1000)
    spill.drain()
    limit_files(spill, 200_000)
    assert spill.stall_reason() == ""

    def fill_until_closed() -> None:
        with suppress(SpillError):
            fill(spill, [0])

    writer = threading.Thread(target=fill_until_closed, daemon=True)
    writer.start()
    deadline = spill._worker.deadline()
    while not (reason := spill.stall_reason()) and time.monotonic() < deadline:
        writer.join(0.02)
    assert writer.is_alive()
    assert "File too large" in reason
    assert "raise the limit" in reason
    spill.close()
    writer.join()
    assert spill.stall_reason() == ""


def test_a_process_killed_on_a_full_disk_loses_nothing(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(1000), DIM, WIDTH), 1000)
    spill.drain()
    limit_files(spill, 200_000)
    written = [0]
    assert_fails(spill, "takes no rows: .*File too large", lambda: fill(spill, written))
    kill(spill)
    assert_found(spill, numbered_rows(np.arange(1000 * len(written)), DIM, WIDTH))
    spill.drain()
    assert len(spill.read_all()) == 1000 * len(written)


def test_a_vanished_folder_is_reported_and_not_recreated(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(1000), DIM, WIDTH)
    spill.write(rows, 1000)
    spill.drain()
    shutil.rmtree(spill.folder)
    kill(spill)
    await_start(spill)
    assert_fails(spill, "cannot be read: .* has vanished - restart the trainer", lambda: find(spill, rows))
    spill.write(numbered_rows(np.arange(2000, 2010), DIM, WIDTH), 10)
    assert_fails(spill, "cannot be written: .* has vanished", spill.drain)
    assert not spill.folder.exists()


def test_the_last_failure_is_reported_also_where_the_process_then_does_not_respond(
    spill: RocksSpill, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = numbered_rows(np.arange(1000), DIM, WIDTH)
    spill.write(rows, 1000)
    spill.drain()
    shutil.rmtree(spill.folder)
    kill(spill)
    await_start(spill)
    worker = spill._worker

    def stop_and_lose_patience(seconds: float) -> None:
        assert worker._process is not None
        os.kill(worker._process.popen.pid, signal.SIGSTOP)

    monkeypatch.setattr(worker, "pause", stop_and_lose_patience)
    assert_fails(spill, "cannot be read: .* has vanished", lambda: find(spill, rows))


def test_a_database_locked_by_another_process_is_reported_and_used_once_free(spill: RocksSpill) -> None:
    import rocksdbpy

    options = rocksdbpy.Option()
    options.create_if_missing(True)
    other = rocksdbpy.open(str(spill.folder / "000000"), options)
    rows = numbered_rows(np.arange(100), DIM, WIDTH)
    spill.write(rows, 100)
    await_start(spill)
    assert_fails(spill, r"lock.* - another process has it open", spill.drain)
    assert_found(spill, rows)
    other.close()
    del other
    spill.drain()
    assert_found(spill, rows)


@pytest.mark.parametrize("place", ["/proc/spill", "a file/spill"])
def test_a_folder_that_cannot_be_created_is_reported_at_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(SpillError, match="cannot create"):
        RocksSpill(tmp_path / place, dim=DIM, state_width=WIDTH)


def inject(spill: RocksSpill, key: bytes, value: bytes) -> None:
    """Write to the first database directly, after killing the spill's process."""
    import rocksdbpy

    spill.drain()
    kill(spill)
    database = rocksdbpy.open(str(spill.folder / "000000"), rocksdbpy.Option())
    database.set(key, value)
    database.close()


def test_a_record_of_wrong_size_is_reported(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(1000), DIM, WIDTH)
    spill.write(rows, 1000)
    spill.drain()
    with spill._worker.reading() as (_, databases):
        (database,) = databases
    assert database.exists
    from springtide_client.keys import hash_keys

    key_hash = hash_keys(rows.feature[:1], rows.id[:1])
    inject(spill, key_hash.astype(">u8").tobytes() + b"\0\0", b"short")
    with pytest.raises(SpillError, match=r"a record of 5 bytes instead of 84 - restart"):
        find(spill, rows)
    assert_found(spill, rows.take(np.arange(1, 1000)))
    with pytest.raises(SpillError, match="a record of 5 bytes"):
        spill.read_all()


def test_a_corrupt_record_stops_only_the_purge(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(1000), DIM, WIDTH)
    spill.write(rows, 1000)
    spill.drain()
    inject(spill, b"\0" * 9 + b"\1", b"short")
    spill.purge({0: 500})
    spill.drain()
    assert_found(spill, rows)


def test_a_corrupt_file_is_reported(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(20_000), DIM, WIDTH)
    for start in range(0, 20_000, 5000):
        spill.write(rows.take(np.arange(start, start + 5000)), 5000)
    spill.drain()
    for _ in range(2):  # when it is reopened, RocksDB writes the rows of its log into a table file
        kill(spill)
        assert_found(spill, rows.take(np.arange(10)))
    kill(spill)
    tables = sorted((spill.folder / "000000").glob("*.sst"))
    assert tables
    for table in tables:
        data = bytearray(table.read_bytes())
        for at in range(0, len(data) * 3 // 4, 512):
            data[at] ^= 0xFF
        table.write_bytes(data)
    with pytest.raises(SpillError, match=r"[Cc]orruption.* - check the disk"):
        find(spill, rows)


def test_a_missing_rocksdb_is_reported_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == "rocksdbpy" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(SpillError, match="install rocksdb-py"):
        RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH)


def test_a_rocksdb_that_cannot_be_loaded_is_reported_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rocksdbpy.py").write_text("raise ImportError('its library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH)
    spill.write(numbered_rows(np.arange(10), DIM, WIDTH), 10)
    with pytest.raises(SpillError, match=r"no RocksDB \(its library is missing\) - install rocksdb-py"):
        spill.drain()
    with pytest.raises(SpillError, match="no RocksDB"):
        find(spill, numbered_rows(np.arange(10), DIM, WIDTH))
    spill.close()
