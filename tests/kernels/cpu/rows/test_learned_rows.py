"""Wide columns lie beside an optimizer's state, untouched by it; rows learned elsewhere are written as the oracle's."""

from typing import Any

import numpy as np
import pytest

from springtide.kernels.backend import backend
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.types import DIRTY, NEEDS_SPILL, NO_SLOT, TICK_BITS, OptimizerStep, RowColumns
from tests.kernels.cpu.rows.test_update import scores_of
from tests.kernels.small_batch import SmallBatch

OPS = backend()
KEYS = [(i % 3, i % 45) for i in range(120)]  # 32 slots: some rows overflow
# compiled for test_update too; in the record: a state, Adam's steps, one number of a row of one, nothing
CASES = [
    (16, "rowwise-adagrad", "float32"),
    (3, "adam", "bfloat16"),
    (16, "adam", "float32"),
    (1, "adagrad", "float32"),
    (3, "ftrl", "float32"),
    (16, "sgd", "float32"),
]


@pytest.mark.parametrize(("dim", "name", "dtype"), CASES)
def test_updates_and_learned_rows_take_turns(dim: int, name: str, dtype: str) -> None:
    rng, wide = np.random.default_rng(dim), 5
    batch = SmallBatch(KEYS, rng.integers(0, 99, len(KEYS)), dim=dim, name=name, dtype=dtype, wide=wide)
    step, num = OptimizerStep(name, 0.1, seed=3), len(batch.slots)
    created = OPS.read(batch.store, batch.slots)
    assert not created.states_NS.any()
    for turn in range(3):
        read = OPS.read(batch.store, batch.slots)
        values = read.values_ND + rng.standard_normal((num, dim)).astype(np.float32)
        states = read.states_NS.copy()
        states[:, -wide:] += rng.random((num, wide), np.float32)
        fresh = OPS.write_learned(batch.store, batch.slots, values, states, step.seed)
        assert fresh.tolist() == (batch.slots.tolist() if turn == 0 else [])
        for row, value, state in zip(batch.rows, values, states, strict=True):
            row.write_learned(value, state, step.seed)
        batch.check()
        batch.update(rng.standard_normal((len(KEYS), dim)).astype(np.float32), step, parts=2)
        batch.check()
    assert (OPS.read(batch.store, batch.slots).flags_N == DIRTY | NEEDS_SPILL).all()


@pytest.mark.parametrize("count_priority", [False, True])
def test_a_touch_counts_as_an_update_does(count_priority: bool) -> None:
    rng = np.random.default_rng(1)
    times = rng.integers(0, 99, len(KEYS))
    batch, twin = (SmallBatch(KEYS, times, dim=16, name="sgd", wide=2) for _ in range(2))
    before = OPS.read(batch.store, batch.slots)
    for turn in range(2):
        counts, seen = batch.unique.occurrences_U, batch.unique.last_seen_U
        fresh = OPS.touch(batch.store, batch.slots, counts, seen, count_priority)
        theirs, _ = twin.update(
            np.zeros((len(KEYS), 16), np.float32), OptimizerStep("sgd", 0.1), count_priority=count_priority
        )
        assert fresh.tolist() == theirs
        assert len(fresh) == (0 if turn else len(batch.slots))
    for mine, other in zip(OPS.read(batch.store, batch.slots), OPS.read(twin.store, twin.slots), strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(OPS.read(batch.store, batch.slots).values_ND, before.values_ND)
    assert scores_of(batch.store, batch.slots) == scores_of(twin.store, twin.slots)
    assert any(word >> TICK_BITS for word in scores_of(batch.store, batch.slots)) == count_priority


def test_a_key_without_a_slot_is_passed_over_and_reads_as_nothing() -> None:
    batch = SmallBatch(KEYS, np.zeros(len(KEYS)), dim=16, name="rowwise-adagrad", wide=3)
    before, slots = OPS.read(batch.store, batch.slots), batch.slots.copy()
    slots[::2] = NO_SLOT
    read = OPS.read(batch.store, slots)
    assert np.isnan(read.values_ND[::2]).all()
    assert not any(column[::2].any() for column in read[1:])
    np.testing.assert_array_equal(read.values_ND[1::2], before.values_ND[1::2])
    values, states = np.ones_like(before.values_ND), np.ones_like(before.states_NS)
    assert OPS.write_learned(batch.store, slots, values, states, 0).tolist() == slots[1::2].tolist()
    ones = np.ones(len(slots), np.int64)
    assert not len(OPS.touch(batch.store, slots, ones, ones, False))
    after = OPS.read(batch.store, batch.slots)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new[::2], old[::2])
    assert (after.values_ND[1::2] == 1).all()
    assert after.counts_N.tolist()[1::2] == [1] * (len(slots) // 2)


@pytest.mark.parametrize("name", ["rowwise-adagrad", "adagrad"])
def test_wide_columns_move_with_their_rows(name: str) -> None:
    batch = SmallBatch(KEYS[:20], np.zeros(20), dim=16, name=name, wide=5)
    rng, read = np.random.default_rng(2), OPS.read(batch.store, batch.slots)
    columns: Any = RowColumns(read.values_ND, rng.random(read.states_NS.shape, np.float32), *read[2:])
    OPS.scatter(batch.store, batch.slots, columns)
    store = OPS.resize(batch.store, WIDTH * 8)
    keys = batch.unique.features_U, batch.unique.ids_U
    moved = OPS.read(store, OPS.find(store, *keys, OPS.hash_keys(*keys)))
    np.testing.assert_array_equal(moved.states_NS, columns.states_NS)
    slots = OPS.find(store, *keys, OPS.hash_keys(*keys))
    OPS.create(store, slots, *keys, 0, 0.1)
    assert not OPS.read(store, slots).states_NS.any()


def test_what_does_not_fit_is_refused() -> None:
    batch = SmallBatch(KEYS, np.zeros(len(KEYS)), dim=16, name="sgd", wide=3)
    num = len(batch.slots)
    with pytest.raises(ValueError, match="values of shape"):
        OPS.write_learned(batch.store, batch.slots, np.zeros((num, 15), np.float32), np.zeros((num, 3)), 0)
    with pytest.raises(ValueError, match="states of shape"):
        OPS.write_learned(batch.store, batch.slots, np.zeros((num, 16), np.float32), np.zeros((num, 2)), 0)
    with pytest.raises(ValueError, match="counts"):
        OPS.touch(batch.store, batch.slots, np.zeros(1, np.int64), np.zeros(num, np.int64), False)
