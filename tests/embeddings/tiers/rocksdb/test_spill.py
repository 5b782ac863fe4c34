"""The spill returns what was written last, from its queue or from disk."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE
from springtide.embeddings.tiers.rocksdb import table_files
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill, unknown_format
from springtide_client.rows.row_block import RowBlock
from tests.embeddings.tiers.spill_support import assert_fails, await_start

DIM = 4


def rows(keys: list[tuple[int, int]], value: float) -> RowBlock:
    num = len(keys)
    return RowBlock(
        np.array([f for f, _ in keys], np.uint16),
        np.array([i for _, i in keys], np.int64),
        np.full((num, DIM), value, np.float32) + np.arange(num, dtype=np.float32)[:, None],
        np.full((num, 1), value, np.float32),
        np.arange(num),
        np.arange(num) * 10,
    )


def wait_until_written(spill: RocksSpill) -> None:
    spill.drain()


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[RocksSpill]:
    made = RocksSpill.of_epoch(tmp_path, 3, dim=DIM, state_width=1)
    yield made
    made.close()


KEYS = [(0, 1), (1, 1), (65535, -1), (0, -(2**63)), (0, 2**63 - 1), (0, 256)]


@pytest.mark.parametrize("written", [False, True])
def test_a_row_comes_back_with_all_columns(spill: RocksSpill, written: bool) -> None:
    spill.write(rows(KEYS, 0.5), len(KEYS))
    if written:
        wait_until_written(spill)
    wanted = rows([*KEYS[::-1], (7, 7)], 0)
    found = spill.find(wanted.feature, wanted.id)
    assert found.kinds_U.tolist() == [ROW] * len(KEYS) + [ABSENT]
    expected = rows(KEYS, 0.5)
    np.testing.assert_array_equal(found.rows.value[:-1][::-1], expected.value)
    np.testing.assert_array_equal(found.rows.state[:-1][::-1], expected.state)
    assert found.rows.count[:-1][::-1].tolist() == expected.count.tolist()
    assert found.rows.last_seen[:-1][::-1].tolist() == expected.last_seen.tolist()
    assert spill.num_rows() == len(KEYS)


@pytest.mark.parametrize("written", [False, True])
def test_the_newest_write_wins_and_a_tombstone_hides_older_rows(spill: RocksSpill, written: bool) -> None:
    spill.write(rows(KEYS, 1), len(KEYS))
    spill.open_generation()
    if written:
        wait_until_written(spill)
    spill.write(rows(KEYS[:2], 2), 2)
    spill.add_tombstones(rows(KEYS[1:3], 0).feature, rows(KEYS[1:3], 0).id)
    if written:
        wait_until_written(spill)
    found = spill.find(rows(KEYS, 0).feature, rows(KEYS, 0).id)
    assert found.kinds_U.tolist() == [ROW, TOMBSTONE, TOMBSTONE, ROW, ROW, ROW]
    assert found.rows.value[0, 0] == 2
    assert found.rows.value[3, 0] == 4
    assert sorted(spill.read_all().id.tolist()) == sorted([1, -(2**63), 2**63 - 1, 256])


def test_a_generation_is_destroyed_as_a_whole(spill: RocksSpill) -> None:
    spill.write(rows(KEYS[:2], 1), 2)
    closed = spill.open_generation()
    spill.write(rows(KEYS[1:3], 2), 2)
    wait_until_written(spill)
    spill.destroy_generations(closed)
    found = spill.find(rows(KEYS, 0).feature, rows(KEYS, 0).id)
    assert found.kinds_U.tolist() == [ABSENT, ROW, ROW, ABSENT, ABSENT, ABSENT]
    assert spill.num_rows() == 2


def test_many_rows_come_back_from_the_disk(spill: RocksSpill) -> None:
    keys = [(i % 3, i * 1_000_003) for i in range(5000)]
    spill.write(rows(keys, 0), 5000)
    wait_until_written(spill)
    shuffled = np.random.default_rng(0).permutation(5000)
    wanted = rows(keys, 0).take(shuffled)
    found = spill.find(wanted.feature, wanted.id)
    assert (found.kinds_U == ROW).all()
    np.testing.assert_array_equal(found.rows.value, wanted.value)
    assert spill.num_bytes() > 0


def test_a_full_queue_blocks_the_writer_and_loses_nothing(tmp_path: Path) -> None:
    spill = RocksSpill(tmp_path / "narrow", dim=DIM, state_width=1, queue_bytes=1000)
    for start in range(0, 2000, 100):
        spill.write(rows([(0, start + i) for i in range(100)], start), 100)
    found = spill.find(np.zeros(2000, np.uint16), np.arange(2000))
    assert (found.kinds_U == ROW).all()
    np.testing.assert_array_equal(found.rows.value[:, 0], np.arange(2000))
    spill.close()


def test_a_start_deletes_older_epochs_only(tmp_path: Path) -> None:
    for name in ("1", "2", "4", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    spill = RocksSpill.of_epoch(tmp_path, 3, dim=DIM, state_width=1)
    assert sorted(os.listdir(tmp_path)) == ["3", "4", "notes"]
    spill.close()
    assert sorted(os.listdir(tmp_path)) == ["4", "notes"]


def test_a_second_spill_of_one_epoch_is_refused(spill: RocksSpill, tmp_path: Path) -> None:
    with pytest.raises(SpillError, match="cannot create"):
        RocksSpill.of_epoch(tmp_path, 3, dim=DIM, state_width=1)


def test_a_failing_disk_raises_after_patience_and_keeps_the_queue(tmp_path: Path) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1, queue_bytes=1)
    blocker = tmp_path / "spill" / "000000"
    blocker.write_text("no folder for a database")
    spill.write(rows(KEYS, 1), len(KEYS))
    await_start(spill)
    assert_fails(spill, "takes no rows: .*File exists", lambda: spill.write(rows([(9, 9)], 1), 1))
    found = spill.find(rows(KEYS, 0).feature, rows(KEYS, 0).id)
    assert (found.kinds_U == ROW).all()
    blocker.unlink()
    spill.write(rows([(9, 9)], 1), 1)
    spill.drain()
    assert len(spill.read_all()) == len(KEYS) + 1
    assert spill.counters()["spill_failures"] > 0
    spill.close()


def test_calls_after_close_raise(spill: RocksSpill) -> None:
    spill.write(rows(KEYS, 1), len(KEYS))
    spill.close()
    spill.close()
    with pytest.raises(SpillError, match="closed"):
        spill.find(rows(KEYS, 0).feature, rows(KEYS, 0).id)
    with pytest.raises(SpillError, match="closed"):
        spill.write(rows(KEYS, 1), len(KEYS))
    assert not spill._worker._thread.is_alive()


def test_num_bytes_works_while_folders_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=4, state_width=1)
    (spill.folder / "000007").mkdir()
    (spill.folder / "000007" / "file").write_bytes(b"1234")
    assert spill.num_bytes() >= 4
    scandir = os.scandir

    def vanishing(path):
        if str(path).endswith("000007"):
            shutil.rmtree(path, ignore_errors=True)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    spill.num_bytes()
    monkeypatch.undo()
    assert not (spill.folder / "000007").exists()
    spill.close()


def test_what_the_installed_rocksdb_writes_is_read_here(tmp_path: Path) -> None:
    assert unknown_format(tmp_path / "trial") == ""
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_said_once_and_rocksdb_reads_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_files, "FORMAT_VERSION", 99)
    assert unknown_format(tmp_path / "trial") == "another version of the table format"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the format of the spill's tables is unknown, RocksDB reads them"
    ]
