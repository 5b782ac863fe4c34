"""A purge deletes expired rows from disk, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from springtide.embeddings.tiers.no_spill import NoSpill
from springtide.embeddings.tiers.record_kinds import ABSENT, TOMBSTONE
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from tests.embeddings.tiers.spill_support import assert_found, find, kill, numbered_rows

DIM, WIDTH = 32, 1


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[RocksSpill]:
    made = RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH)
    yield made
    made.close()


def test_the_folder_shrinks_and_live_rows_stay(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(60_000), DIM, WIDTH)
    spill.write(rows, 60_000)
    spill.drain()
    before, memory = spill.num_bytes(), spill.memory_bytes()
    spill.purge({0: 54_000})
    spill.drain()
    assert spill.num_bytes() < 0.2 * before
    assert spill.memory_bytes() < memory
    assert spill.num_rows() == 6000
    assert_found(spill, rows.take(np.arange(54_000, 60_000)))
    assert (find(spill, rows.take(np.arange(54_000))).kinds_U == ABSENT).all()
    assert spill.counters()["spill_purged"] == 54_000


def test_a_database_of_expired_rows_is_deleted_without_being_read(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(5000), DIM, WIDTH), 5000)
    spill.drain()
    spill.purge({0: 10_000})
    spill.drain()
    assert spill.num_rows() == 0
    assert spill.num_bytes() == 0
    spill.write(numbered_rows(np.arange(10_000, 10_100), DIM, WIDTH), 100)
    assert_found(spill, numbered_rows(np.arange(10_000, 10_100), DIM, WIDTH))


def test_rows_of_other_features_and_tombstones_stay(spill: RocksSpill) -> None:
    mine, other = numbered_rows(np.arange(2000), DIM, WIDTH), numbered_rows(np.arange(2000), DIM, WIDTH, feature=7)
    marked = numbered_rows(np.arange(5000, 5100), DIM, WIDTH)
    spill.write(mine, 2000)
    spill.write(other, 2000)
    spill.add_tombstones(marked.feature, marked.id)
    spill.purge({0: 10_000})
    spill.drain()
    assert (find(spill, mine).kinds_U == ABSENT).all()
    assert_found(spill, other)
    assert (find(spill, marked).kinds_U == TOMBSTONE).all()


def test_cutoffs_of_many_features(spill: RocksSpill) -> None:
    num = 5000
    rows = numbered_rows(np.arange(num), DIM, WIDTH)
    rows.feature[:] = np.arange(num, dtype=np.uint16)
    spill.write(rows, num)
    spill.drain()
    spill.purge({feature: feature + (1 if feature % 2 else -1) for feature in range(num)})
    spill.drain()
    kinds = find(spill, rows).kinds_U
    assert (kinds[1::2] == ABSENT).all()
    assert_found(spill, rows.take(np.arange(0, num, 2)))


def test_few_expired_rows_do_not_cause_a_rewrite(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(10_000), DIM, WIDTH)
    spill.write(rows, 10_000)
    spill.drain()
    spill.purge({0: 500})
    spill.drain()
    assert_found(spill, rows)
    assert spill.counters()["spill_purged"] == 0


def test_rows_written_during_a_rewrite_win(spill: RocksSpill) -> None:
    old = numbered_rows(np.arange(30_000), DIM, WIDTH)
    spill.write(old, 30_000)
    spill.drain()
    spill.purge({0: 10_000})
    for start in range(0, 30_000, 3000):
        newer = numbered_rows(np.arange(start, start + 1000), DIM, WIDTH, version=50_000)
        spill.write(newer, 0)
        assert_found(spill, newer)
        middle = np.arange(max(start, 9000) + 1000, max(start, 9000) + 3000)
        assert_found(spill, old.take(middle))
    spill.drain()
    for start in range(0, 30_000, 3000):
        assert_found(spill, numbered_rows(np.arange(start, start + 1000), DIM, WIDTH, version=50_000))
    assert (find(spill, old.take(np.arange(1000, 3000))).kinds_U == ABSENT).all()
    assert len(spill.read_all()) == 24_000
    assert 22_000 <= spill.num_rows() <= 30_000


def test_a_killed_process_resumes_the_rewrite(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(40_000), DIM, WIDTH)
    spill.write(rows, 40_000)
    spill.drain()
    spill.purge({0: 20_000})
    for _ in range(4):
        kill(spill)
        assert_found(spill, rows.take(np.arange(20_000, 40_000, 100)))
    spill.drain()
    assert (find(spill, rows.take(np.arange(20_000))).kinds_U == ABSENT).all()
    assert_found(spill, rows.take(np.arange(20_000, 40_000)))


def test_a_generation_destroyed_during_its_rewrite_leaves_nothing(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(40_000), DIM, WIDTH), 40_000)
    spill.drain()
    spill.purge({0: 20_000})
    closed = spill.open_generation()
    spill.destroy_generations(closed)
    spill.drain()
    assert list(spill.folder.iterdir()) == []
    assert spill.num_rows() == 0


def test_the_last_seen_quantile_counts_all_databases(spill: RocksSpill) -> None:
    assert spill.last_seen_quantile(0.5) is None
    spill.write(numbered_rows(np.arange(10_000), DIM, WIDTH), 10_000)
    spill.open_generation()
    spill.write(numbered_rows(np.arange(10_000, 20_000), DIM, WIDTH, feature=3), 10_000)
    spill.drain()
    cold = spill.last_seen_quantile(0.25)
    assert cold is not None
    assert abs(cold - 5000) < 100
    spill.purge({0: cold, 3: cold})
    spill.drain()
    assert 14_500 < spill.num_rows() < 15_500


def test_without_a_spill_there_is_nothing_to_purge() -> None:
    none = NoSpill(DIM, WIDTH)
    none.purge({0: 5})
    assert none.last_seen_quantile(0.5) is None
    none.set_limit(1)
    assert none.fraction_to_forget() == 0
    assert none.counters() == {}
    assert none.memory_bytes() == 0
