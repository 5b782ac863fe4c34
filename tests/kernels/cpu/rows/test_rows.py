"""Rows in and out of a store, whatever their width."""

import itertools
from typing import Any

import numpy as np
import pytest

from springtide.kernels.backend import backend
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import NO_SLOT, OptimizerStep, RowLayout
from tests.kernels.oracle import nearest
from tests.kernels.small_batch import insert

OPS = backend()


def filled(layout: RowLayout, num: int = 30) -> tuple[Any, Any, Any]:
    """A store with random rows, their slots and columns."""
    store = OPS.allocate(32, 16, layout)
    slots = insert(store, [(1, i * 7) for i in range(num)]).slots_U
    rng = np.random.default_rng(0)
    columns = OPS.read(store, slots)._replace(
        values_ND=rng.standard_normal((num, layout.dim)).astype(np.float32),
        states_NS=rng.standard_normal((num, layout.state_width)).astype(np.float32),
        counts_N=np.arange(num),
        last_seen_N=np.arange(num) * 3,
        flags_N=np.full(num, 2),
    )
    OPS.scatter(store, slots, columns)
    return store, slots, columns


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 2, 3, 16, 64, 100])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_scattered_is_read_and_outlives_a_larger_overflow_area(dim: int, name: str, dtype: str) -> None:
    store, slots, columns = filled(RowLayout(dim, OPTIMIZERS[name].state_width(dim), dtype))
    values = columns.values_ND if dtype == "float32" else nearest(columns.values_ND)
    for held in (store, OPS.grow_overflow(store, 40)):
        read = OPS.read(held, slots)
        np.testing.assert_array_equal(read.values_ND, values)
        np.testing.assert_array_equal(OPS.counts_of(held, slots), columns.counts_N)
        for ours, theirs in zip(read[1:], columns[1:], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 100])
def test_what_is_scattered_is_gathered(dim: int, dtype: str) -> None:
    store, slots, columns = filled(RowLayout(dim, 1, dtype))
    slots[7] = NO_SLOT
    values = columns.values_ND if dtype == "float32" else nearest(columns.values_ND)
    values[7] = np.nan
    inverse = np.random.default_rng(1).integers(0, 30, 100)
    np.testing.assert_array_equal(OPS.gather(store, slots, inverse), values[inverse])
    out = np.zeros((100, dim), np.float32)
    assert OPS.gather(store, slots, inverse, out=out) is out
    np.testing.assert_array_equal(out, values[inverse])


def test_a_created_row_forgets_whose_slot_it_had() -> None:
    for name in OPTIMIZERS:
        store, slots, _ = filled(RowLayout(3, OPTIMIZERS[name].state_width(3)))
        features, ids = OPS.keys_of(store, slots)
        OPS.create(store, slots, features, ids, 5, 0.5)
        read = OPS.read(store, slots)
        np.testing.assert_array_equal(read.values_ND, OPS.initial_values(features, ids, 3, 5, 0.5))
        assert not any(column.any() for column in (read.states_NS, read.counts_N, read.last_seen_N))


def test_bfloat16_rounds_to_nearest_even_and_keeps_what_is_no_number() -> None:
    store, slots, columns = filled(RowLayout(8, 0, "bfloat16"), num=1)
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x80000000]])
    OPS.scatter(store, slots, columns._replace(values_ND=bits.astype(np.uint32).view(np.float32)))
    stored = OPS.gather(store, slots, np.zeros(1, np.int64))[0].view(np.uint32) >> 16
    assert stored[:6].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80]
    assert np.isnan(OPS.read(store, slots).values_ND[0, 6])
    assert stored[7] == 0x8000


def test_a_store_counts_every_byte_of_a_slot() -> None:
    for name in OPTIMIZERS:
        for dtype in ("float32", "bfloat16"):
            layout = RowLayout(16, OPTIMIZERS[name].state_width(16), dtype)
            small, large = (OPS.allocate(num, 16, layout).num_bytes for num in (160, 320))
            assert large - small == 160 * OPS.slot_bytes(layout)


def test_wrong_shapes_are_refused_before_a_kernel_sees_them() -> None:
    store, slots, columns = filled(RowLayout(4, 1), num=2)
    with pytest.raises(ValueError, match="multiple of 16"):
        OPS.allocate(17, 1, RowLayout(4, 1))
    with pytest.raises(ValueError, match="negative width"):
        OPS.allocate(16, 1, RowLayout(4, -1))
    with pytest.raises(ValueError, match="float16"):
        OPS.allocate(16, 1, RowLayout(4, 1, "float16"))
    with pytest.raises(ValueError, match="values"):
        OPS.scatter(store, slots, columns._replace(values_ND=np.zeros((3, 4), np.float32)))
    with pytest.raises(ValueError, match="states"):
        OPS.scatter(store, slots, columns._replace(states_NS=np.zeros((2, 2), np.float32)))
    with pytest.raises(ValueError, match="out"):
        OPS.gather(store, slots, np.zeros(3, np.int64), out=np.zeros((3, 5), np.float32))


DIM, NUM_ROWS = 32, 200


def store_of(values: Any) -> tuple[Any, Any]:
    """A bfloat16 store with these rows, and their slots."""
    store = OPS.allocate(WIDTH * 32, 64, RowLayout(DIM, 0, "bfloat16"))
    slots = insert(store, [(2, i) for i in range(len(values))]).slots_U
    columns = OPS.read(store, slots)
    OPS.scatter(store, slots, columns._replace(values_ND=values))
    return store, slots


def stepped(store: Any, slots: Any, grads: Any, *, seed: int, parts: int = 1) -> Any:
    """The rows after a step of SGD with lr 1."""
    num = len(slots)
    one_each, times = np.arange(num + 1), np.zeros(num, np.int64)
    bounds = np.linspace(0, num, parts + 1).astype(int)
    for start, stop in reversed(list(itertools.pairwise(bounds))):
        step = OptimizerStep("sgd", 1.0, seed=seed)
        OPS.update(store, slots, one_each[:-1], one_each, grads, times, step, False, start, stop)
    return OPS.read(store, slots).values_ND


def random_rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return tuple(rng.standard_normal((NUM_ROWS, DIM)).astype(np.float32) for _ in range(2))  # type: ignore[return-value]


def test_a_new_value_becomes_one_of_its_two_neighbours_and_itself_on_average() -> None:
    values, grads = random_rows()
    num_seeds, total, ups = 400, np.zeros((NUM_ROWS, DIM)), np.zeros((NUM_ROWS, DIM))
    for seed in range(num_seeds):
        store, slots = store_of(values)
        exact = OPS.read(store, slots).values_ND - grads
        low = (exact.view(np.uint32) & 0xFFFF_0000).view(np.float32)  # nearer to 0
        high = ((exact.view(np.uint32) & 0xFFFF_0000) + 0x1_0000).view(np.float32)
        rounded = stepped(store, slots, grads, seed=seed)
        assert ((rounded == low) | (rounded == high)).all()
        total += rounded
        ups += rounded == high
    unit = np.abs(high.astype(np.float64) - low)
    chance = np.abs(exact.astype(np.float64) - low) / unit
    error = (total / num_seeds - exact) / unit
    spread = np.sqrt(chance * (1 - chance) / num_seeds)
    assert np.abs(error.mean()) < 5 * spread.mean() / np.sqrt(error.size)
    assert (np.abs(error) <= 5 * spread + 1e-9).all()
    assert (ups[chance == 0] == 0).all()


def test_elements_rows_steps_and_seeds_have_bits_of_their_own() -> None:
    rows = np.full((NUM_ROWS, DIM), 1.0, np.float32)
    grads = np.full((NUM_ROWS, DIM), -(2.0**-9), np.float32)  # a quarter of the way to the next bfloat16
    store, slots = store_of(rows)
    first = stepped(store, slots, grads, seed=1) > 1
    store, slots = store_of(rows)
    other_seed = stepped(store, slots, grads, seed=2) > 1
    store, slots = store_of(rows)
    stepped(store, slots, np.zeros_like(grads), seed=1)
    next_step = stepped(store, slots, grads, seed=1) > 1
    for ups in (first, other_seed, next_step):
        assert abs(ups.mean() - 0.25) < 0.02
        assert np.abs(ups.mean(0) - 0.25).max() < 0.15
        assert np.abs(ups.mean(1) - 0.25).max() < 0.40
    for a, b in ((first, other_seed), (first, next_step), (first[:, 1:], first[:, :-1]), (first[1:], first[:-1])):
        assert abs((a & b).mean() - 0.0625) < 0.02


def test_neither_ranges_nor_order_nor_another_run_change_a_bit() -> None:
    values, grads = random_rows()
    results = []
    for parts in (1, 1, 2, 7):
        store, slots = store_of(values)
        stepped(store, slots, grads, seed=5, parts=parts)
        results.append(stepped(store, slots, grads, seed=6, parts=parts))
    store, slots = store_of(values)
    backwards = np.arange(NUM_ROWS)[::-1]
    for seed in (5, 6):
        stepped(store, slots[backwards], grads[backwards], seed=seed)
    results.append(OPS.read(store, slots).values_ND)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_steps_too_small_for_eight_bits_add_up() -> None:
    store, slots = store_of(np.ones((NUM_ROWS, DIM), np.float32))
    grads = np.full((NUM_ROWS, DIM), -1e-4, np.float32)  # rounding to nearest would never leave 1
    for _ in range(300):
        rows = stepped(store, slots, grads, seed=3)
    assert abs(rows.mean() - 1.03) < 1e-3


def test_an_infinite_row_stays_what_it_is() -> None:
    rows = np.full((NUM_ROWS, DIM), np.inf, np.float32)
    rows[:, 1] = np.nan
    store, slots = store_of(rows)
    for seed in range(5):
        after = stepped(store, slots, np.ones((NUM_ROWS, DIM), np.float32), seed=seed)
        np.testing.assert_array_equal(after, rows)
