"""The CUDA backend's rows and updates are the oracle's, bit by bit: kernels and launchers together."""

import itertools
from typing import Any

import numpy as np
import pytest

from springtide.kernels.cuda.launchers.update_ops import LONG, group_of, num_part_floats
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import NO_SLOT, OptimizerStep, RowColumns, RowLayout
from tests.kernels.oracle import Row, key_hash, nearest
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host

SEED, SCALE = 9, 0.1
NUM_KEYS = 40


class FilledStore:
    """Keys with first values in a store of the CUDA backend, and the oracle's rows."""

    def __init__(
        self, device: Any, dim: int, *, name: str = "sgd", dtype: str = "float32", wide: int = 0, late: bool = False
    ) -> None:
        self.ops, self.put = CudaOps(device, late=late), device.put
        self.features = self.put((np.arange(NUM_KEYS) % 3).astype(np.uint16))
        self.ids = self.put(np.arange(NUM_KEYS, dtype=np.int64) * 977 - 5)
        width = OPTIMIZERS[name].state_width(dim) + wide
        self.store = self.ops.allocate(128, 16, RowLayout(dim, width, dtype, wide))
        key_hashes = self.ops.hash_keys(self.features, self.ids)
        self.slots = self.ops.find_or_insert(self.store, self.features, self.ids, key_hashes, 1, 1).slots_U
        self.ops.create(self.store, self.slots, self.features, self.ids, SEED, SCALE)
        self.keys = list(zip(host(self.features).tolist(), host(self.ids).tolist(), strict=True))
        self.rows = [Row(key, dim=dim, seed=SEED, scale=SCALE, dtype=dtype, width=width) for key in self.keys]

    def read(self) -> RowColumns:
        return RowColumns(*(host(array) for array in self.ops.read(self.store, self.slots)))

    def check(self) -> None:
        """Every column of every row is the oracle's, bit by bit."""
        columns = self.read()
        for u, row in enumerate(self.rows):
            np.testing.assert_array_equal(columns.values_ND[u], row.value)
            np.testing.assert_array_equal(columns.states_NS[u], row.states)
        assert columns.counts_N.tolist() == [row.count for row in self.rows]
        assert columns.last_seen_N.tolist() == [row.last_seen for row in self.rows]


def occurrences_of(rng: Any, num: int) -> Any:
    """Keys of a batch, some seldom, one more often than LONG, some not at all."""
    inverse = np.concatenate([rng.integers(0, NUM_KEYS - 4, num), np.full(num // 2, 7)])
    rng.shuffle(inverse)
    return inverse.astype(np.int64)


CASES = [  # a row of one number; rows that are no whole vectors; rows of vectors and of more lanes than 64
    *((1, "float32", name) for name in ("sgd", "adagrad", "adam")),
    *((6, "float32", name) for name in ("adagrad", "rowwise-adagrad", "adam", "ftrl")),
    *((68, "bfloat16", name) for name in ("sgd", "rowwise-adagrad", "adam", "ftrl")),
]
STEPS = {
    "sgd": OptimizerStep("sgd", 0.3, weight_decay=0.1, seed=3),
    "adagrad": OptimizerStep("adagrad", 0.3, clip_norm=2.0, seed=4),
    "rowwise-adagrad": OptimizerStep("rowwise-adagrad", 0.3, clip_norm=0.5, seed=5),
    "adam": OptimizerStep("adam", 0.01, weight_decay=0.01, seed=6),
    "ftrl": OptimizerStep("ftrl", 0.1, l1=0.05, l2=0.01, seed=7),
}


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("dim", "dtype", "optimizer"), CASES)
def test_updates_are_the_oracles_bit_by_bit(name: str, dim: int, dtype: str, optimizer: str) -> None:
    step, rng = STEPS[optimizer], np.random.default_rng(1)
    filled = FilledStore(device_of(name, seed=dim), dim, name=optimizer, dtype=dtype)
    priorities = [0] * NUM_KEYS
    for turn in range(3):
        inverse = occurrences_of(rng, 60)
        counts = np.bincount(inverse, minlength=NUM_KEYS)
        times, num_bags = rng.integers(0, 99, NUM_KEYS), 50
        bags = rng.integers(0, num_bags, len(inverse)) if turn else None
        scales = rng.random(len(inverse), np.float32) if turn == 2 else None
        grads = rng.standard_normal((num_bags if turn else len(inverse), dim)).astype(np.float32)
        if turn == 1:
            grads[3, dim // 2] = np.inf
        order, offsets = filled.ops.group(filled.put(inverse), filled.put(counts))
        more = [None if array is None else filled.put(array) for array in (bags, scales)]
        learned = (filled.put(grads), filled.put(times), step, turn == 2)
        parts = [
            filled.ops.update(filled.store, filled.slots, order, offsets, *learned, *bounds, *more)
            for bounds in ((0, 17), (17, NUM_KEYS))
        ]
        fresh = host(filled.slots)[[u for u, row in enumerate(filled.rows) if not row.count and counts[u]]]
        assert np.concatenate([host(part[0]) for part in parts]).tolist() == fresh.tolist()
        assert (sum(part[1] for part in parts) > 0) == (turn == 1)
        for u, row in enumerate(filled.rows):
            occurrences = np.flatnonzero(inverse == u)
            if not len(occurrences):
                continue
            sources = occurrences if bags is None else bags[occurrences]
            factors = np.ones(len(sources), np.float32) if scales is None else scales[occurrences]
            row.update([grads[b] * f for b, f in zip(sources, factors, strict=True)], int(times[u]), step)
            priorities[u] = row.count if turn == 2 else 0
        filled.check()
    lowest = host(filled.ops.lowest_scores(filled.store, -1, NUM_KEYS, 99)).tolist()
    ranked = sorted(range(NUM_KEYS), key=lambda u: (priorities[u], key_hash(filled.keys[u])))
    assert lowest == [host(filled.slots)[u] for u in ranked]


@pytest.mark.parametrize("name", DEVICES)
def test_a_key_of_many_occurrences_is_summed_in_parts_of_a_written_order(name: str) -> None:
    filled, rng, dim = FilledStore(device_of(name), 6), np.random.default_rng(2), 6
    most = 1 << 20 if name == "gpu" else 3 * LONG + 5
    counts = np.array([1, most, 0, LONG, LONG + 1, 2, 2 * LONG] + [0] * (NUM_KEYS - 7))
    inverse = np.repeat(np.arange(NUM_KEYS), counts)
    rng.shuffle(inverse)
    grads = rng.standard_normal((len(inverse), dim)).astype(np.float32)
    order, offsets = filled.ops.group(filled.put(inverse), filled.put(counts))
    times, put = filled.put(np.zeros(NUM_KEYS, np.int64)), filled.put
    before = filled.read().values_ND
    step = OptimizerStep("sgd", 1.0)
    filled.ops.update(filled.store, filled.slots, order, offsets, put(grads), times, step, False, 0, NUM_KEYS)
    after = filled.read().values_ND
    for u in np.flatnonzero(counts) if name == "gpu" else range(NUM_KEYS):
        mine = grads[inverse == u]
        parts = [mine[start : start + LONG] for start in range(0, len(mine), LONG)]
        total = np.zeros(dim, np.float32)
        for part in parts:
            total = total + np.add.accumulate(part, axis=0)[-1]
        np.testing.assert_array_equal(after[u], before[u] - total if len(mine) else before[u])


@pytest.mark.parametrize("name", DEVICES)
def test_parts_of_a_sum_are_those_of_their_key(name: str) -> None:
    dim, rng = 68, np.random.default_rng(5)
    filled = FilledStore(device_of(name), dim, name="rowwise-adagrad", dtype="bfloat16")
    for counts in ([3 * LONG] + [1] * 39, [1] * 20 + [LONG + 1] * 3 + [0] * 17, [5] * 39 + [2 * LONG + 200]):
        inverse = rng.permutation(np.repeat(np.arange(NUM_KEYS), counts))
        grads = rng.integers(-9, 9, (len(inverse), dim)).astype(np.float32)  # their sums are exact in any order
        order, offsets = filled.ops.group(filled.put(inverse), filled.put(np.array(counts)))
        times, step = np.zeros(NUM_KEYS, np.int64), STEPS["rowwise-adagrad"]
        learned = (filled.put(grads), filled.put(times), step, False, 0, NUM_KEYS)
        filled.ops.update(filled.store, filled.slots, order, offsets, *learned)
        for u, row in enumerate(filled.rows):
            if counts[u]:
                row.update(list(grads[inverse == u]), 0, step)
        filled.check()


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("dim", "dtype"), [(6, "float32"), (68, "bfloat16")])
def test_rows_come_out_as_they_were_written(name: str, dim: int, dtype: str) -> None:
    filled, rng = FilledStore(device_of(name), dim, name="rowwise-adagrad", dtype=dtype), np.random.default_rng(3)
    filled.check()
    values = rng.standard_normal((NUM_KEYS, dim)).astype(np.float32)
    known = [rng.integers(0, 9, NUM_KEYS) for _ in range(3)]
    columns = RowColumns(values, rng.random((NUM_KEYS, 1), np.float32), *known)
    filled.ops.scatter(filled.store, filled.slots, RowColumns(*(filled.put(array) for array in columns)))
    values = values if dtype == "float32" else nearest(values)
    for written, read in zip((values, *columns[1:]), filled.read(), strict=True):
        np.testing.assert_array_equal(read, written)
    slots, inverse, offsets = host(filled.slots).copy(), rng.integers(0, NUM_KEYS, 90), [0, 0, 3, 40, 41, 90]
    slots[[1, 5]], slots[30:] = NO_SLOT, NO_SLOT
    inverse[40] = 1  # a bag without any row
    batch = [filled.put(np.asarray(array)) for array in (slots, inverse, offsets)]
    rows = np.where((slots >= 0)[:, None], values, np.nan)[inverse]
    np.testing.assert_array_equal(host(filled.ops.gather(filled.store, *batch[:2])), rows)
    bags = [rows[start:stop] for start, stop in itertools.pairwise(offsets)]
    scales = rng.normal(size=90).astype(np.float32)
    scaled, _ = filled.ops.gather_pooled(filled.store, *batch, "sum", filled.put(scales))
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        weighed = (rows * scales[:, None])[start:stop]
        weighed = weighed[~np.isnan(weighed).any(1)]
        sums = np.add.accumulate(weighed, axis=0)[-1:] if len(weighed) else np.zeros((1, dim), np.float32)
        np.testing.assert_array_equal(host(scaled)[b], sums[0])
    for mode in ("sum", "mean", "max"):
        pooled, winners = filled.ops.gather_pooled(filled.store, *batch, mode)
        for b, bag in enumerate(bags):
            there = bag[~np.isnan(bag).any(1)]
            sums = np.add.accumulate(there, axis=0)[-1:] if len(there) else np.zeros((1, dim), np.float32)
            expected = {
                "sum": sums[0],
                "mean": sums[0] / np.float32(max(1, len(there))),
                "max": there.max(0) if len(there) else sums[0],
            }
            np.testing.assert_array_equal(host(pooled)[b], expected[mode])
            if mode == "max":
                first = offsets[b] + np.nanargmax(bag, axis=0) if len(there) else np.full(dim, -1)
                np.testing.assert_array_equal(host(winners)[b], first)


@pytest.mark.parametrize("name", DEVICES)
def test_touched_rows_are_listed_once_in_the_order_given(name: str) -> None:
    filled = FilledStore(device_of(name), 6)
    slots = host(filled.slots)
    filled.ops.set_flags(filled.store, filled.put(slots[:5]), 3)
    asked = np.concatenate([slots[6:2:-1], [NO_SLOT], slots[:6]])
    touched = filled.ops.clear_dirty(filled.store, filled.put(asked))
    assert host(touched).tolist() == [slots[u] for u in (4, 3, 0, 1, 2)]
    assert filled.read().flags_N[:6].tolist() == [2] * 6
    assert len(filled.ops.clear_dirty(filled.store, filled.put(asked))) == 0


@pytest.mark.parametrize("name", DEVICES)
def test_a_step_waits_for_nothing(name: str) -> None:
    device = device_of(name)
    filled, dim = FilledStore(device, 6, name="rowwise-adagrad"), 6
    eager, store = CudaOps(device, exact=False), filled.store
    device.read = None  # type: ignore[method-assign]
    features, ids = np.array([0, 0, 1, 0], np.uint16), np.array([-5, 10**6, 3, -5])
    unique = eager.unique(filled.put(features), filled.put(ids), filled.put(np.arange(4)))
    placed = eager.find_or_insert(store, unique.features_U, unique.ids_U, unique.key_hash_U, 2, 2)
    slots = host(placed.slots_U)
    assert (slots[:3] >= 0).all()
    assert slots[3] == NO_SLOT
    eager.create(store, placed.victim_slots_V, unique.features_U, unique.ids_U, 0, 0.1)
    order, offsets = eager.group(unique.inverse_K, unique.occurrences_U)
    grads, step = filled.put(np.ones((4, dim), np.float32)), OptimizerStep("rowwise-adagrad", 0.1)
    last_seen = unique.last_seen_U
    fresh, num_refused = eager.update(store, placed.slots_U, order, offsets, grads, last_seen, step, True, 0, 4)
    assert host(fresh).tolist() == slots.tolist()
    assert host(num_refused).tolist() == [0]
    columns = eager.read(store, eager.clear_dirty(store, fresh))
    assert host(columns.counts_N).tolist() == [2, 1, 1, 0]
    assert host(columns.last_seen_N).tolist() == [3, 1, 2, 0]


def test_numbers_that_two_languages_share_are_the_same() -> None:
    assert [group_of(dim) for dim in (1, 2, 8, 9, 17, 33, 64, 128, 1000)] == [1, 2, 2, 4, 8, 16, 16, 16, 16]
    assert num_part_floats(LONG, 8) == 2 * 2 * 8
    assert num_part_floats(3 * LONG + 1, 68) == 2 * 5 * 128


@pytest.mark.parametrize("name", DEVICES)
def test_gradients_of_another_shape_or_place_are_refused(name: str) -> None:
    filled = FilledStore(device_of(name), 68, dtype="bfloat16")
    order, offsets = filled.put(np.arange(NUM_KEYS)), filled.put(np.arange(NUM_KEYS + 1))
    times, step = filled.put(np.zeros(NUM_KEYS, np.int64)), OptimizerStep("sgd", 1.0)
    flat = filled.put(np.zeros(NUM_KEYS * 68 + 1, np.float32))
    for grads, message in ((flat[1:].reshape(-1, 68), "16 bytes"), (flat[:-69].reshape(-1, 68), r"float32 \(40, 68\)")):
        with pytest.raises(ValueError, match=message):
            filled.ops.update(filled.store, filled.slots, order, offsets, grads, times, step, False, 0, NUM_KEYS)
    with pytest.raises(ValueError, match="state of width"):
        filled.ops.update(
            *(filled.store, filled.slots, order, offsets, flat[:-1].reshape(-1, 68), times),
            *(OptimizerStep("adam", 1.0), False, 0, NUM_KEYS),
        )


LEARNED_CASES = [  # one state in the record; vectors that the wide columns would break; neither; one number a row
    (8, "float32", "rowwise-adagrad"),
    (8, "float32", "adam"),
    (68, "bfloat16", "ftrl"),
    (6, "float32", "adagrad"),
    (1, "float32", "adagrad"),
]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("dim", "dtype", "optimizer"), LEARNED_CASES)
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
    key_hash = filled.ops.hash_keys(filled.features, filled.ids)
    filled.slots = filled.ops.find(filled.store, filled.features, filled.ids, key_hash)
    np.testing.assert_array_equal(filled.read().states_NS, columns.states_NS)
