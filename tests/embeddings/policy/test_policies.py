"""Who may stay, who must go, and what is counted: eviction, quotas, times to live, admission, live limits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings.config import FeaturePolicy, TableConfig, TableLimits
from embeddings.lookup.read_only import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from embeddings.memory import eviction
from embeddings.memory.capacity import Capacity
from embeddings.memory.expiry_sweep import SWEEP_PARTS
from embeddings.table import EmbeddingTable
from embeddings.tiers.interface import FoundRows
from embeddings.tiers.rocksdb.spill import RocksSpill
from kernels.ops import Ops
from tests.embeddings.backends import host, is_emulated, uses_shared_row

DIM = 4
BUCKET = Capacity.of_rows(1)  # rounded up to one


def make(
    capacity: Capacity | None = BUCKET, spill: Any = None, *, device: str | Ops = "cpu", **settings: Any
) -> EmbeddingTable:
    return EmbeddingTable(TableConfig(dim=DIM, **settings), seed=0, spill=spill, capacity=capacity, device=device)


def learn(table: EmbeddingTable, ids: Any, feature: int = 0, at_ms: int = 1000, scores: Any = None) -> None:
    ids_K = np.asarray(ids, np.int64)
    features_K, times_K = np.full(len(ids_K), feature, np.uint16), np.full(len(ids_K), at_ms, np.int64)
    scores_K = None if scores is None else np.asarray(scores, np.float32)
    table.update(table.lookup(features_K, ids_K, times_K, scores_K=scores_K), np.ones((len(ids_K), DIM), np.float32))


def status(table: EmbeddingTable, ids: Any, feature: int = 0) -> list[int]:
    ids_K = np.asarray(ids, np.int64)
    found: list[int] = table.find(np.full(len(ids_K), feature, np.uint16), ids_K)[1].tolist()
    table.check_integrity()
    return found


def test_lru_lets_go_of_what_was_not_asked_for_longest(ops: Ops) -> None:
    table, width = make(device=ops), ops.width
    for ids in ([0], [1], [2], range(3, width)):
        learn(table, ids)
    learn(table, [0])
    learn(table, [1000, 1001])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [1, 2]


def test_lfu_keeps_what_was_learned_most_often(ops: Ops) -> None:
    table, width = make(eviction="lfu", device=ops), ops.width
    learn(table, [5, 9, *np.repeat([id_ for id_ in range(width) if id_ not in (5, 9)], 3)])
    learn(table, [1000])
    learn(table, [1001, 1002])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [5, 9]


def test_lfu_remembers_counts_of_rows_that_were_spilled(tmp_path: Path, ops: Ops) -> None:
    table = make(eviction="lfu", spill=RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops)
    zero, width = (np.zeros(1, np.uint16), np.array([7])), ops.width
    learn(table, [7] * 50)
    learn(table, np.repeat(np.arange(1000, 1000 + width), 60))  # all of them worth more
    assert int(table.parts.memory.find(*zero)[0]) < 0
    table.forget(np.zeros(width, np.uint16), np.arange(1000, 1000 + width))
    table.lookup(*zero, np.zeros(1, np.int64)).release()  # recalled, not learned
    learn(table, np.repeat(np.arange(2000, 2000 + width - 1), 5))
    learn(table, [3000])
    assert int(table.parts.memory.find(*zero)[0]) >= 0
    table.close()


def test_a_lookup_that_is_not_learned_counts_for_nothing(ops: Ops) -> None:
    table, width = make(eviction="lfu", device=ops), ops.width
    learn(table, np.repeat(np.arange(width), 2))
    for _ in range(3):
        table.lookup(np.zeros(1, np.uint16), np.array([3]), np.zeros(1, np.int64)).release()
    learn(table, [4])
    learn(table, np.arange(1000, 1000 + width - 1))  # all but one must go
    assert status(table, [3, 4]) == [FORGOTTEN, KNOWN]


def test_custom_scores_decide_who_leaves(ops: Ops) -> None:
    table, width = make(eviction="custom", device=ops), ops.width
    learn(table, [6, *range(width)], scores=[1000, *(-1.5 if id_ == 6 else id_ for id_ in range(width))])
    learn(table, [1000], scores=[500])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [6]
    with pytest.raises(ValueError, match="score"):
        learn(table, [1])
    with pytest.raises(ValueError, match="score"):
        learn(make(device=ops), [1], scores=[1])


def test_a_quota_holds_between_batches_and_spares_other_features(tmp_path: Path, ops: Ops) -> None:
    table = make(
        Capacity.of_rows(1024),
        RocksSpill(tmp_path / "spill", dim=DIM, state_width=1),
        device=ops,
        features={1: FeaturePolicy(quota_bytes="4KiB")},
    )
    allowed = 4096 // table.parts.quotas.slot_bytes
    learn(table, range(200), feature=0)
    for start in range(0, 600, 150):
        learn(table, range(start, start + 150), feature=1)
        assert int(np.count_nonzero(table.parts.memory.features() == 1)) <= allowed
    assert int(np.count_nonzero(table.parts.memory.features() == 0)) == 200
    assert table.counters()["evicted_quota"] >= 600 - allowed
    assert status(table, range(600), feature=1) == [KNOWN] * 600
    table.close()


def test_a_time_to_live_runs_on_event_time_and_what_returns_is_new(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops, features={1: FeaturePolicy(ttl_seconds=10)})
    learn(table, [1, 2], feature=1, at_ms=5_000)
    learn(table, [1, 2], feature=0, at_ms=5_000)
    first = table.find(np.ones(1, np.uint16), np.array([3]))
    table.advance(15_000, 0)
    assert status(table, [1, 2, 3], feature=1) == [KNOWN, KNOWN, UNKNOWN]
    learn(table, [2], feature=1, at_ms=15_000)
    table.advance(15_001, 0)
    assert table.expiry_cutoffs == {1: 5_001}
    assert status(table, [1, 2], feature=1) == [FORGOTTEN, KNOWN]
    assert status(table, [1, 2], feature=0) == [KNOWN, KNOWN]
    learn(table, [1], feature=1, at_ms=16_000)
    told = table.take_delta()
    row = (told.features == 1) & (told.ids == 1)
    assert told.counts[row].tolist() == [1]
    assert np.isnan(host(first[0])).all()


def test_a_late_click_on_an_old_row_keeps_it_alive(ops: Ops) -> None:
    table = make(device=ops, features={0: FeaturePolicy(ttl_seconds=10)})
    learn(table, [1], at_ms=50_000)
    table.advance(50_000, 0)
    learn(table, [1, 2], at_ms=20_000)  # long past its time
    assert status(table, [1, 2]) == [KNOWN, KNOWN]
    assert table.take_delta().last_seen.tolist() == [50_000, 40_000]


def test_the_highest_feature_may_have_a_time_to_live(ops: Ops) -> None:
    table = make(device=ops, features={65535: FeaturePolicy(ttl_seconds=10)})
    table.advance(60_000, 0)
    learn(table, [1], feature=65535, at_ms=1_000)
    assert table.take_delta().last_seen.tolist() == [50_000]


def test_dead_rows_are_swept_out_of_memory(ops: Ops) -> None:
    table = make(Capacity.of_rows(1024), device=ops, features={0: FeaturePolicy(ttl_seconds=10)})
    learn(table, range(300), at_ms=1_000)
    for _ in range(SWEEP_PARTS + 1):  # a device tells what it found with the next call
        table.advance(60_000, 0)
    assert table.rows_by_tier()["device"] == 0
    assert table.counters()["expired"] == 300
    table.check_integrity()


def test_an_id_is_admitted_once_it_was_seen_often_enough(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops, admission={"min_count": 3, "sketch_bytes": "64KiB"})
    zeros, id_ = np.zeros(1, np.uint16), np.array([42])
    lookup = table.lookup(zeros, id_, zeros.astype(np.int64))
    assert uses_shared_row(lookup).tolist() == [True]
    shared_before = host(table.gather(lookup))
    table.update(lookup, np.ones((1, DIM), np.float32))
    assert status(table, [42, 43]) == [NOT_ADMITTED, UNKNOWN]

    lookup = table.lookup(zeros, np.array([43]), zeros.astype(np.int64))
    assert (host(table.gather(lookup)) < shared_before).all()  # they share a row, and it has learned
    lookup.release()

    learn(table, [42])
    assert status(table, [42]) == [NOT_ADMITTED]
    learn(table, [42])
    assert status(table, [42]) == [KNOWN]
    assert table.counters()["admitted"] == 1
    assert table.counters()["not_admitted"] == 3


def test_counts_towards_admission_halve_with_samples(ops: Ops) -> None:
    table = make(device=ops, admission={"min_count": 4, "sketch_bytes": "64KiB", "decay_every_samples": 100})
    learn(table, [1] * 3)
    learn(table, [2] * 3)
    table.advance(0, 99)
    learn(table, [1])
    table.advance(0, 100)
    learn(table, [2])
    assert status(table, [1, 2]) == [KNOWN, NOT_ADMITTED]


def test_regret_is_a_row_asked_for_again_soon_after_it_left(
    tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "PREMATURE_LOOKUPS", 20)
    table, width = make(spill=RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops), ops.width
    learn(table, range(width))
    learn(table, range(width, 2 * width))
    assert table.counters()["premature_evictions"] == 0
    learn(table, [3])
    assert table.counters()["premature_evictions"] == 1
    learn(table, range(1000, 1000 + width))
    for _ in range(21):
        table.lookup(np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.int64)).release()
    learn(table, [3])
    assert table.counters()["premature_evictions"] == 1
    table.close()


def test_prefetched_rows_are_recalled_ahead_and_equal_those_recalled_at_once(tmp_path: Path, ops: Ops) -> None:
    rows, width = [], ops.width
    for ahead in (False, True):
        table = make(spill=RocksSpill(tmp_path / str(ahead), dim=DIM, state_width=1), device=ops)
        for start in (0, width, 2 * width):
            learn(table, range(start, start + width))
        keys = np.zeros(16, np.uint16), np.arange(16), np.zeros(16, np.int64)
        prefetched = table.prefetch(*keys) if ahead else None
        lookup = table.lookup(*keys, prefetched=prefetched)
        rows.append(host(table.gather(lookup)).copy())
        assert table.counters()["prefetched"] == (16 if ahead else 0)
        assert table.counters()["recalled_from_spill"] == 16
        lookup.release()
        with pytest.raises(ValueError, match="prefetched"):
            table.lookup(*(array.copy() for array in keys), prefetched=table.prefetch(*keys))
        table.close()
    np.testing.assert_array_equal(*rows)


def test_a_prefetch_never_brings_back_what_was_forgotten_meanwhile(tmp_path: Path, ops: Ops) -> None:
    table = make(spill=RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops)
    for start in (0, ops.width):
        learn(table, range(start, start + ops.width))
    keys = np.zeros(3, np.uint16), np.arange(3), np.zeros(3, np.int64)
    prefetched = table.prefetch(*keys)
    table.forget(np.zeros(1, np.uint16), np.array([1]))
    table.update(table.lookup(*keys, prefetched=prefetched), np.zeros((3, DIM), np.float32))
    told = table.take_delta()
    counts = dict(zip(told.ids.tolist(), told.counts.tolist(), strict=True))
    assert (counts[0], counts[1], counts[2]) == (2, 1, 2)
    table.close()


def test_a_table_grows_and_shrinks_under_load(tmp_path: Path, ops: Ops) -> None:
    part = 16 if is_emulated(ops) else 1
    bytes_of = {"4MiB": 4 * 2**20 // part, "512KiB": 2**19 // part, "2MiB": 2**21 // part, "1MiB": 2**20 // part}
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = make(None, spill, device=ops, device_bytes=bytes_of["1MiB"])
    small = table.parts.memory.store.num_slots
    rng = np.random.default_rng(0)
    learned = np.zeros(30_000 // part, np.int64)
    for size in bytes_of.values():
        for _ in range(2 if is_emulated(ops) else 4):
            ids = rng.integers(0, len(learned), 3000 // part)
            learn(table, ids)
            learned += np.bincount(ids, minlength=len(learned))
            table.take_delta()
        held = table.lookup(np.zeros(1, np.uint16), np.zeros(1, np.int64), np.zeros(1, np.int64))
        with pytest.raises(ValueError, match="open"):
            table.set_limits(TableLimits(device_bytes=size))
        held.release()
        table.set_limits(TableLimits(device_bytes=size))
        table.check_integrity()
        assert table.bytes_by_tier()["device"] <= size
    assert table.parts.memory.store.num_slots == small
    assert table.counters()["evicted_resize"] > 0
    rows = table.export()
    counts = np.zeros_like(learned)
    counts[rows.ids] = rows.counts
    np.testing.assert_array_equal(counts, learned)
    table.close()


def test_limits_change_while_the_table_is_in_use(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops)
    learn(table, [1, 2, 3])
    before = host(table.find(np.zeros(1, np.uint16), np.array([1]))[0])
    table.set_limits(TableLimits(lr=0.0))
    learn(table, [1])
    np.testing.assert_array_equal(host(table.find(np.zeros(1, np.uint16), np.array([1]))[0]), before)
    table.set_limits(TableLimits(min_count={0: 2}, ttl_seconds={0: 5}))
    learn(table, [9], at_ms=10_000)
    assert status(table, [9]) == [NOT_ADMITTED]
    table.advance(10_000, 0)
    assert set(status(table, [1, 2, 3])) <= {FORGOTTEN, UNKNOWN}  # unknown once swept
    table.set_limits(TableLimits(min_count={0: None}, ttl_seconds={0: None}))
    learn(table, [10], at_ms=10_000)
    table.advance(90_000, 0)
    assert status(table, [10]) == [KNOWN]
    with pytest.raises(ValueError, match="ttl_seconds"):
        TableLimits(ttl_seconds={0: -1})
    with pytest.raises(ValueError, match="1024"):
        table.set_limits(TableLimits(lr=0.5, device_bytes="1KiB"))
    assert table.lr == 0.0
    with pytest.raises(ValueError, match="sketch"):
        make(None, device_bytes="16MiB", admission={"min_count": 2})


def test_a_quota_may_come_and_go_while_the_table_is_in_use(tmp_path: Path, ops: Ops) -> None:
    table = make(Capacity.of_rows(256), RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops)
    learn(table, range(100), feature=1)
    learn(table, range(20), feature=0)
    table.set_limits(TableLimits(quota_bytes={1: 10 * table.parts.quotas.slot_bytes}))
    assert int(np.count_nonzero(table.parts.memory.features() == 1)) <= 10
    table.set_limits(TableLimits(quota_bytes={1: None}))
    learn(table, range(100), feature=1)
    assert int(np.count_nonzero(table.parts.memory.features() == 1)) > 90
    table.check_integrity()
    table.close()


class OneRow:
    """A base that holds id 1, learned so often."""

    def __init__(self, count: int) -> None:
        self.count = count

    def find(self, features_U: Any, ids_U: Any) -> FoundRows:
        found_U, counts_U = ids_U == 1, np.full(len(ids_U), self.count, np.int64)
        zeros = np.zeros((len(ids_U), DIM), np.float32)
        return FoundRows(found_U, zeros, zeros[:, :1].copy(), counts_U, np.zeros(len(ids_U), np.int64))


def test_a_base_mapped_meanwhile_voids_a_prefetch(tmp_path: Path, ops: Ops) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = EmbeddingTable(TableConfig(dim=DIM), seed=0, spill=spill, base=OneRow(5), capacity=BUCKET, device=ops)
    keys = np.zeros(1, np.uint16), np.ones(1, np.int64), np.zeros(1, np.int64)
    generation = table.open_generation()
    prefetched = table.prefetch(*keys)
    table.map_base(OneRow(7), generation)
    table.update(table.lookup(*keys, prefetched=prefetched), np.zeros((1, DIM), np.float32))
    assert table.take_delta().counts.tolist() == [8]
    table.close()


def test_sweeps_and_quotas_do_not_void_a_prefetch(tmp_path: Path, ops: Ops) -> None:
    table = make(
        Capacity.of_rows(64),
        RocksSpill(tmp_path / "spill", dim=DIM, state_width=1),
        device=ops,
        features={1: FeaturePolicy(ttl_seconds=1), 2: FeaturePolicy(quota_bytes="1KiB")},
    )
    for start in range(0, 400, 40):
        learn(table, range(start, start + 40), at_ms=start)
    keys = np.zeros(20, np.uint16), np.arange(20), np.zeros(20, np.int64)
    learn(table, range(30), feature=1, at_ms=500)
    prefetched = table.prefetch(*keys)
    for _ in range(64):
        table.advance(9_000, 0)
    table.parts.memory.enforce_quotas()
    assert table.counters()["expired"] > 0
    table.lookup(*keys, prefetched=prefetched).release()
    assert table.counters()["prefetched"] == 20
    table.close()


def test_a_shrunk_table_gives_back_what_a_large_batch_needed(tmp_path: Path, ops: Ops) -> None:
    num_bytes = 2**17 if is_emulated(ops) else 2**22
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = make(None, spill, device=ops, device_bytes=num_bytes)
    learn(table, range(num_bytes // 40))
    assert table.bytes_by_tier()["device"] > num_bytes
    table.take_delta()
    table.set_limits(TableLimits(device_bytes=num_bytes // 4))
    table.take_delta()
    assert table.bytes_by_tier()["device"] <= num_bytes // 4
    table.check_integrity()
    table.close()
