"""Stochastic rounding to bfloat16: right on average, and never a matter of threads, order or luck."""

import itertools
from typing import Any

import numpy as np

from springtide.kernels.backend import backend
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.types import OptimizerStep, RowLayout
from tests.kernels.small_batch import placed

OPS = backend()
DIM, NUM_ROWS = 32, 200


def store_of(values: Any) -> tuple[Any, Any]:
    """A bfloat16 store with these rows, and their slots."""
    store = OPS.allocate(WIDTH * 32, 64, RowLayout(DIM, 0, "bfloat16"))
    slots = placed(store, [(2, i) for i in range(len(values))])
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
