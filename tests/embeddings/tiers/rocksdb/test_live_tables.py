"""Mapped tables beside a RocksDB that writes, flushes and compacts, against a dictionary."""

import random
import threading
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
import rocksdbpy

from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE
from springtide.embeddings.tiers.rocksdb import process_main
from springtide.embeddings.tiers.rocksdb.catalog import KeyFilter
from springtide.embeddings.tiers.rocksdb.live_tables import LiveTables
from springtide.embeddings.tiers.rocksdb.process_main import Databases
from springtide.embeddings.tiers.rocksdb.record_format import RecordFormat
from springtide.kernels.cpu.table_file import find
from springtide_client.keys import hash_keys
from springtide_client.rows.row_block import RowBlock
from tests.support.waiting import wait_until


@pytest.mark.parametrize("num_keys", [1, 1000, 40_000, 600_000])
def test_added_keys_are_found_and_few_others(num_keys: int) -> None:
    rng = np.random.default_rng(num_keys)
    stored, strange = rng.integers(0, 2**64, num_keys, np.uint64), rng.integers(0, 2**64, 100_000, np.uint64)
    keys = KeyFilter()
    for start in range(0, num_keys, 7000):
        keys.add(stored[start : start + 7000])
    assert keys.contains(stored).all()
    assert keys.contains(strange).mean() < 0.01


def test_an_empty_filter_contains_nothing_and_takes_no_memory() -> None:
    assert not KeyFilter().contains(np.arange(10, dtype=np.uint64)).any()
    assert KeyFilter().num_bytes() == 0


def test_keys_added_again_take_no_more_memory() -> None:
    keys, stored = KeyFilter(), np.random.default_rng(0).integers(0, 2**64, 30_000, np.uint64)
    for _ in range(10):
        keys.add(stored)
    assert keys.num_bytes() == 2 * (1 << 15)


def test_it_takes_about_two_bytes_a_key_if_their_number_is_known() -> None:
    stored = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64)
    keys = KeyFilter(len(stored))
    keys.add(stored)
    assert keys.num_bytes() < 2.1 * len(stored)


DIM, WIDTH, NUM_IDS = 16, 1, 6000  # shorter rows are stored compressed, which is left to RocksDB
FORMAT = RecordFormat(DIM, WIDTH)


class Store:
    """One database with its mapped tables, and what it must hold: by id, the version of its row, or 0 if forgotten."""

    def __init__(self, folder: Path) -> None:
        self.databases = Databases(folder, FORMAT.num_bytes, rocksdbpy)
        self.tables = LiveTables(folder / "000000", FORMAT.num_bytes)
        self.expected: dict[int, int] = {}
        self.written: dict[int, int] = {}  # what a reader that begins now must see
        self.version = 0
        self.random = random.Random(5)

    def write(self, ids: list[int], *, tombstones: bool = False) -> None:
        self.version += 1
        rows = rows_of(np.array(ids), self.version)
        self.tables.add(rows.key_hash)
        keys = np.empty(10 * len(ids), np.uint8)
        FORMAT.pack_keys(rows.key_hash, rows.feature, keys)
        records = np.empty(FORMAT.num_bytes * len(ids), np.uint8)
        FORMAT.pack(rows, records)
        values = [b"" if tombstones else bytes(record) for record in records.reshape(len(ids), -1)]
        self.databases.write(0, [bytes(key) for key in keys.reshape(-1, 10)], values, may_create=True)
        self.tables.written(self.databases.sequence(0))
        self.expected |= dict.fromkeys(ids, 0 if tombstones else self.version)

    def write_some(self, num_batches: int, *, first: int = 0) -> None:
        for _ in range(num_batches):
            ids = self.random.sample(range(first, NUM_IDS), 300)
            self.write(ids, tombstones=self.random.random() < 0.2)

    def read(self, ids: list[int]) -> tuple[dict[int, int], list[int]]:
        """What the tables hold of these ids, -1 for nothing, and the ids that they leave to RocksDB."""
        rows = rows_of(np.array(ids), 0)
        kinds = np.full(len(ids), 99, np.uint8)
        view, here, elsewhere = self.tables.split(rows.key_hash, np.argsort(rows.key_hash))
        unsure = self.tables.read(view, here, FoundRows(rows, kinds))
        found = {}
        for u in sorted(set(here.tolist()) - set(unsure.tolist())):
            assert kinds[u] in (ABSENT, ROW, TOMBSTONE)
            if kinds[u] == ROW:
                version = int(rows.count[u])
                same = rows_of(rows.id[u : u + 1], version)
                assert np.array_equal(rows.value[u], same.value[0])
                assert np.array_equal(rows.state[u], same.state[0])
                assert rows.last_seen[u] == same.last_seen[0]
                found[ids[u]] = version
            else:
                found[ids[u]] = 0 if kinds[u] == TOMBSTONE else -1
        return found, [ids[u] for u in np.concatenate([elsewhere, unsure]).tolist()]

    def check(self, ids: list[int]) -> int:
        """Compare with what was written; return how many of the ids were read from tables."""
        found, _ = self.read(ids)
        assert found == {n: self.expected.get(n, -1) for n in found}
        return len(found)


def rows_of(ids: Any, version: int) -> RowBlock:
    """Rows of two features that depend on id and version, not compressible."""
    ids = np.asarray(ids, np.int64)
    rows = RowBlock.zeros(len(ids), DIM, WIDTH)
    rows.feature[:], rows.id[:] = ids % 2, ids
    noise = hash_keys(np.full(len(ids), version, np.uint16), ids)
    words = np.stack([hash_keys(np.full(len(ids), n, np.uint16), noise.view(np.int64)) for n in range(DIM)], axis=1)
    rows.value[:] = (words >> np.uint64(40)).astype(np.float32)
    rows.state[:, 0] = (noise >> np.uint64(41)).astype(np.float32)
    rows.count[:], rows.last_seen[:] = version, (noise >> np.uint64(3)).astype(np.int64)
    return rows


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(process_main, "WRITE_BUFFER_BYTES", 64 << 10)  # many small tables, and compactions of them
    store = Store(tmp_path)
    yield store
    store.databases.close(0)


def num_tables(store: Store) -> int:
    store.tables.split(np.empty(0, np.uint64), np.empty(0, np.int64))
    return len(store.tables._view.tables)


@pytest.mark.parametrize("from_disk", [False, True])
def test_rows_tombstones_and_absent_keys_are_those_written_through_flushes_and_compactions(
    store: Store, from_disk: bool
) -> None:
    num_read = 0
    for _ in range(60):
        store.write_some(5)
        store.tables._readahead.observe(int(from_disk), 1)
        num_read += store.check(random.Random(store.version).sample(range(NUM_IDS + 500), 1000))
    assert not store.tables.is_disabled
    assert num_read > 1000
    wait_until(lambda: any(file.level > 0 for file in store.tables._manifest.files.values()), "a compaction")
    wait_until(lambda: store.check(list(range(NUM_IDS + 500))) > 0, "the tables hold what was written")


def num_rounds_of_blocks(store: Store) -> int:
    """Search the tables as they are now, at once and a block at a time; compare, and count the rounds of the second."""
    rows = rows_of(np.arange(NUM_IDS), 0)
    view, _, _ = store.tables.split(rows.key_hash, np.arange(NUM_IDS))
    expected = view.find(rows.key_hash, rows.feature, np.zeros(NUM_IDS, np.int64))
    first_runs, found = np.zeros(NUM_IDS, np.int64), [np.zeros_like(column) for column in expected]
    left, num_rounds = np.arange(NUM_IDS), 0
    while len(left):
        runs = first_runs[left]
        columns = view.find(rows.key_hash[left], rows.feature[left], runs, one_block=True)
        for to, column in zip(found, columns, strict=True):
            to[left] = column
        is_later = columns[0] == find.LATER
        assert (runs[is_later] > first_runs[left][is_later]).all()
        first_runs[left], left, num_rounds = runs, left[is_later], num_rounds + 1
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return num_rounds


def test_a_search_of_a_block_at_a_time_finds_what_one_of_all_runs_finds(store: Store) -> None:
    store.write_some(400)

    def takes_several_rounds() -> bool:
        if num_rounds_of_blocks(store) > 1:
            return True
        store.write_some(20)  # RocksDB has just merged all tables
        return False

    wait_until(takes_several_rounds, "two tables with keys of one range")


def test_what_is_not_flushed_is_left_to_rocksdb(store: Store) -> None:
    store.write(list(range(100)))
    found, left = store.read(list(range(200)))
    assert set(left) >= set(range(100))
    assert all(version == -1 for version in found.values())


def test_a_reader_beside_the_writer_never_sees_an_older_row(store: Store) -> None:
    store.write_some(100)
    wait_until(lambda: num_tables(store), "a table")
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        random_ids = random.Random(1)
        while not done.is_set():
            ids = random_ids.sample(range(NUM_IDS), 200)
            floor = {n: store.written.get(n, -1) for n in ids}
            found, _ = store.read(ids)
            failures.extend((n, version, floor[n]) for n, version in found.items() if version < floor[n])

    store.written = dict(store.expected)
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(150):
        ids = store.random.sample(range(NUM_IDS), 300)
        store.write(ids)
        store.written |= dict.fromkeys(ids, store.version)
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert not store.tables.is_disabled


def test_after_a_failed_write_rocksdb_is_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_some(100)
    wait_until(lambda: num_tables(store), "a table")
    database = store.databases._open[0]

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(database, name)

        def write(self, batch: Any) -> None:
            raise OSError("disk full")

    store.databases._open[0] = Failing()
    with pytest.raises(OSError, match="disk full"):
        store.write([1])
    store.databases._open[0] = database
    found, left = store.read([1])
    assert (found, left) == ({}, [1])
    store.write([2])
    assert store.tables.is_disabled
    assert store.read([1, 2])[0] == {}


def test_a_damaged_block_is_left_to_rocksdb_which_reports_it(store: Store) -> None:
    store.write_some(150)
    wait_until(lambda: num_tables(store), "a table")
    for table in store.tables._view.tables.values():
        before = int(table.offsets_B1[-1])
        path = next(p for p in store.tables.folder.glob("*.sst") if p.stat().st_size == len(table.bytes))
        with path.open("r+b") as file:
            for at in range(100, before, 500):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0x10]))
    found, left = store.read(list(range(NUM_IDS)))
    assert left
    assert all(version in (-1, store.expected.get(n, -1)) for n, version in found.items())


def test_a_manifest_that_is_gone_turns_direct_reads_off(store: Store) -> None:
    store.write_some(150)
    wait_until(lambda: num_tables(store), "a table")
    (path,) = store.tables.folder.glob("MANIFEST-*")
    kept = path.rename(path.with_name("kept"))
    kept.unlink()
    assert store.read([1, 2, 3])[0] == {}
    assert store.tables.is_disabled


def test_a_manifest_that_is_not_understood_turns_direct_reads_off(store: Store) -> None:
    store.write_some(150)
    wait_until(lambda: num_tables(store), "a table")
    (path,) = store.tables.folder.glob("MANIFEST-*")
    payload = bytes([99, 1])  # a tag that nobody knows
    checksum = crc32c.crc32c(bytes([1]) + payload)
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    with path.open("ab") as file:
        file.write(masked.to_bytes(4, "little") + len(payload).to_bytes(2, "little") + bytes([1]) + payload)
    assert store.read([1, 2, 3])[0] == {}
    assert store.tables.is_disabled


def test_deleted_files_stay_readable_until_the_next_view(store: Store) -> None:
    store.write(list(range(1000)))
    store.write_some(150, first=1000)  # so that the first thousand are in a table
    wait_until(lambda: store.check(list(range(1000))) > 900, "a table")
    rows = rows_of(np.arange(NUM_IDS), 0)
    view, here, _ = store.tables.split(rows.key_hash, np.argsort(rows.key_hash))
    expected = dict(store.expected)
    names = {path.name for path in store.tables.folder.glob("*.sst")}
    store.write_some(400, first=1000)
    wait_until(lambda: names - {path.name for path in store.tables.folder.glob("*.sst")}, "a compaction")
    kinds = np.full(NUM_IDS, 99, np.uint8)
    unsure = store.tables.read(view, here, FoundRows(rows, kinds))
    is_row = [n for n in sorted(set(here.tolist()) - set(unsure.tolist())) if kinds[n] == ROW]
    assert len(is_row) > 900
    assert all(int(rows.count[n]) == expected[n] for n in is_row)
