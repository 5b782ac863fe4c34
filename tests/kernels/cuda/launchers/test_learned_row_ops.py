"""Wide columns and rows learned outside `update` are the oracle's on the CUDA backend, bit by bit."""

import numpy as np
import pytest

from springtide.kernels.types import NO_SLOT, RowColumns
from tests.kernels.cuda.launchers.test_row_ops import NUM_KEYS, STEPS, FilledStore
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host

CASES = [  # with one state in the record; in vectors that the wide columns would break; neither; one number a row
    (8, "float32", "rowwise-adagrad"),
    (8, "float32", "adam"),
    (68, "bfloat16", "ftrl"),
    (6, "float32", "adagrad"),
    (1, "float32", "adagrad"),
]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("dim", "dtype", "optimizer"), CASES)
def test_updates_and_learned_rows_take_turns(name: str, dim: int, dtype: str, optimizer: str) -> None:
    rng, wide, step = np.random.default_rng(dim), 5, STEPS[optimizer]
    filled = FilledStore(device_of(name, seed=dim), dim, name=optimizer, dtype=dtype, wide=wide)
    filled.check()
    slots = host(filled.slots).copy()
    slots[[1, 5]] = NO_SLOT
    for turn in range(2):
        read = filled.read()
        values = read.values_ND + rng.standard_normal((NUM_KEYS, dim)).astype(np.float32)
        states = read.states_NS.copy()
        states[:, -wide:] += rng.random((NUM_KEYS, wide), np.float32)
        learned = (filled.put(slots), filled.put(values), filled.put(states), step.seed)
        fresh = host(filled.ops.write_learned(filled.store, *learned)).tolist()
        assert fresh == ([] if turn else slots[slots != NO_SLOT].tolist())
        for u in np.flatnonzero(slots != NO_SLOT):
            filled.rows[u].write_learned(values[u], states[u], step.seed)
        filled.check()
        inverse = rng.integers(0, NUM_KEYS, 90)
        counts, grads = np.bincount(inverse, minlength=NUM_KEYS), rng.standard_normal((90, dim)).astype(np.float32)
        order, offsets = filled.ops.group(filled.put(inverse), filled.put(counts))
        batch = (filled.put(grads), filled.put(np.zeros(NUM_KEYS, np.int64)), step, False, 0, NUM_KEYS)
        filled.ops.update(filled.store, filled.slots, order, offsets, *batch)
        for u in np.flatnonzero(counts):
            filled.rows[u].update(list(grads[inverse == u]), 0, step)
        filled.check()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", DEVICES)
def test_a_touch_counts_and_nothing_else(name: str, late: bool) -> None:
    filled, rng = FilledStore(device_of(name), 8, name="sgd", wide=3, late=late), np.random.default_rng(1)
    slots, counts, times = host(filled.slots).copy(), rng.integers(0, 4, NUM_KEYS), rng.integers(0, 99, NUM_KEYS)
    slots[3] = NO_SLOT
    touched = np.flatnonzero((slots != NO_SLOT) & (counts > 0))
    batch = (filled.put(slots), filled.put(counts), filled.put(times))
    for turn in range(2):
        fresh = host(filled.ops.touch(filled.store, *batch, True))
        assert fresh[fresh != NO_SLOT].tolist() == ([] if turn else slots[touched].tolist())
        assert len(fresh) == NUM_KEYS or not late
        for u in touched:
            filled.rows[u].touch(int(counts[u]), int(times[u]))
    filled.check()
    lowest = host(filled.ops.lowest_scores(filled.store, -1, NUM_KEYS, 99)).tolist()
    order = [filled.rows[host(filled.slots).tolist().index(slot)].count for slot in lowest]
    assert order == sorted(order)


@pytest.mark.parametrize("name", DEVICES)
def test_wide_columns_move_with_their_rows(name: str) -> None:
    filled = FilledStore(device_of(name), 8, name="adam", wide=5)
    rng, read = np.random.default_rng(2), filled.read()
    columns = RowColumns(read.values_ND, rng.random(read.states_NS.shape, np.float32), *read[2:])
    filled.ops.scatter(filled.store, filled.slots, RowColumns(*(filled.put(array) for array in columns)))
    filled.store = filled.ops.resize(filled.store, 512)
    mixed = filled.ops.mix_keys(filled.features, filled.ids)
    filled.slots = filled.ops.find(filled.store, filled.features, filled.ids, mixed)
    np.testing.assert_array_equal(filled.read().states_NS, columns.states_NS)
