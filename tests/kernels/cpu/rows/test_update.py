"""Every optimizer against the oracle, against torch, and against its paper."""

import os
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.backend import backend
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import DIRTY, TICK_BITS, OptimizerStep, RowLayout
from tests.kernels.oracle import Key
from tests.kernels.small_batch import SmallBatch, insert

OPS = backend()
SMALL_KEYS = st.tuples(st.integers(0, 2), st.integers(-3, 40) | st.sampled_from([2**63 - 1, -(2**63), 1 << 32]))
DIMS, DTYPES = [1, 3, 16, 100], ["float32", "bfloat16"]
# each triple is compiled by itself, which takes a second: every dimension with every optimizer, both types with each of
# either, and with the one that keeps its state inside the record; `make torture` takes them all
ALL = list(product(DIMS, OPTIMIZERS, DTYPES))
EACH_PAIR = [ALL[2 * number + number % 2] for number in range(len(ALL) // 2)]  # five optimizers: the types take turns
RECORDED = [(1, "adagrad", dtype) for dtype in DTYPES]
COMPILED = ALL if "TORTURE_EXAMPLES" in os.environ else [*EACH_PAIR, *RECORDED]


@settings(deadline=None, max_examples=60)
@given(
    keys=st.lists(SMALL_KEYS, min_size=1, max_size=60),
    compiled=st.sampled_from(COMPILED),
    seed=st.integers(0, 2**32),
    parts=st.integers(1, 3),
    lr=st.sampled_from([0.001, 0.05, 3.0]),
    decay=st.sampled_from([0.0, 0.3]),
    clip=st.sampled_from([0.0, 0.5]),
    l1=st.sampled_from([0.0, 0.2]),
)
def test_update_equals_the_oracle_however_it_is_split(
    keys: list[Key],
    compiled: tuple[int, str, str],
    seed: int,
    parts: int,
    lr: float,
    decay: float,
    clip: float,
    l1: float,
) -> None:
    dim, name, dtype = compiled
    rng = np.random.default_rng(seed)
    batch = SmallBatch(keys, rng.integers(0, 100, len(keys)), dim=dim, name=name, dtype=dtype)
    step = OptimizerStep(name, lr, weight_decay=decay, clip_norm=clip, l1=l1, l2=0.1, beta=0.5, beta1=0.8, seed=seed)
    for turn in range(3):
        grads = rng.standard_normal((len(keys), dim)).astype(np.float32)
        if turn == 1:
            grads[rng.integers(len(keys)), rng.integers(dim)] = rng.choice([np.nan, np.inf, 3e38])
        fresh, refused = batch.update(grads, step, parts=parts)
        assert fresh == (batch.slots.tolist() if turn == 0 else [])
        assert refused == (1 if turn == 1 else 0)
    batch.check()
    touched = OPS.clear_dirty(batch.store, np.concatenate([batch.slots, batch.slots]))
    assert sorted(touched.tolist()) == sorted(batch.slots.tolist())
    assert not (OPS.read(batch.store, batch.slots).flags_N & DIRTY).any()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(SMALL_KEYS, min_size=1, max_size=60),
    st.sampled_from([3, 16]),
    st.integers(0, 2**32),
    st.booleans(),
    st.booleans(),
)
def test_occurrences_take_the_gradients_of_their_bags(
    keys: list[Key], dim: int, seed: int, bagged: bool, scaled: bool
) -> None:
    rng = np.random.default_rng(seed)
    batch = SmallBatch(keys, np.zeros(len(keys)), dim=dim, name="rowwise-adagrad")
    bags = np.sort(rng.integers(0, 5, len(keys))) if bagged else None
    scales = rng.standard_normal(len(keys)).astype(np.float32) if scaled else None
    grads = rng.standard_normal((5 if bagged else len(keys), dim)).astype(np.float32)
    batch.update(grads, OptimizerStep("rowwise-adagrad", 0.1), parts=2, bags=bags, scales=scales)
    batch.check()


def trained(name: str, options: Any, num_steps: int = 30) -> tuple[Any, Any, Any]:
    """Rows before, the gradients of some steps in which every row moves, and the rows after them."""
    rng = np.random.default_rng(3)
    keys = [(0, i) for i in range(20)]
    batch = SmallBatch(keys, np.zeros(20), dim=16, name=name)
    before = OPS.read(batch.store, batch.slots).values_ND
    grads = rng.standard_normal((num_steps, 20, 16)).astype(np.float32)
    for grad in grads:
        batch.update(grad, OptimizerStep(name, **options))
    batch.check()
    return before, grads, OPS.read(batch.store, batch.slots).values_ND


@pytest.mark.parametrize(
    ("name", "options", "optimizer"),
    [
        ("sgd", {"lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
        ("sgd", {"lr": 0.1, "weight_decay": 0.2}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2)),
        ("adagrad", {"lr": 0.1, "eps": 1e-10}, lambda p: torch.optim.Adagrad(p, lr=0.1)),
        ("adam", {"lr": 0.01, "eps": 1e-8}, lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            "adam",
            {"lr": 0.01, "beta1": 0.5, "beta2": 0.9, "weight_decay": 0.1},
            lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.5, 0.9), weight_decay=0.1),
        ),
    ],
)
def test_an_optimizer_equals_torchs(name: str, options: Any, optimizer: Any) -> None:
    before, grads, after = trained(name, options)
    parameter = torch.nn.Parameter(torch.from_numpy(before.copy()))
    theirs = optimizer([parameter])
    for grad in grads:
        parameter.grad = torch.from_numpy(grad.copy())
        theirs.step()
    np.testing.assert_allclose(after, parameter.detach().numpy(), rtol=2e-5, atol=1e-6)


def test_rowwise_adagrad_is_adagrad_with_one_state_a_row() -> None:
    before, grads, after = trained("rowwise-adagrad", {"lr": 0.1})
    rows, sums = before.astype(np.float64), np.zeros((20, 1))
    for grad in grads:
        sums += (grad.astype(np.float64) ** 2).mean(1, keepdims=True)
        rows -= 0.1 * grad / (np.sqrt(sums) + 1e-8)
    np.testing.assert_allclose(after, rows, rtol=2e-5, atol=1e-6)


def test_ftrl_is_that_of_its_paper_from_the_first_value_on() -> None:
    lr, l1, l2, beta = 0.3, 0.4, 0.2, 0.7
    before, grads, after = trained("ftrl", {"lr": lr, "l1": l1, "l2": l2, "beta": beta})
    w, n = before.astype(np.float64), np.zeros_like(before, np.float64)
    z = -w * (beta / lr + l2) - np.sign(w) * l1
    for grad in grads.astype(np.float64):
        sigma = (np.sqrt(n + grad**2) - np.sqrt(n)) / lr
        z += grad - sigma * w
        n += grad**2
        w = np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / lr + l2))
    np.testing.assert_allclose(after, w, rtol=1e-4, atol=1e-5)
    assert (after == 0).any()


def test_a_step_of_ftrl_without_a_gradient_leaves_the_first_value() -> None:
    batch = SmallBatch([(0, 1)], np.zeros(1), dim=16, name="ftrl")
    before = OPS.read(batch.store, batch.slots).values_ND
    batch.update(np.zeros((1, 16), np.float32), OptimizerStep("ftrl", 0.1, l1=0.01, l2=0.1))
    np.testing.assert_allclose(OPS.read(batch.store, batch.slots).values_ND, before, rtol=1e-5)


def test_adam_counts_the_steps_of_each_row_beyond_its_table() -> None:
    batch = SmallBatch([(0, 1), (0, 2)], np.zeros(2), dim=3, name="adam")
    rng = np.random.default_rng(1)
    columns = OPS.read(batch.store, batch.slots)
    columns.states_NS[:, -1] = 4094, 0
    OPS.scatter(batch.store, batch.slots, columns)
    batch.rows[0].states[-1] = 4094
    for _ in range(4):
        batch.update(rng.standard_normal((2, 3)).astype(np.float32), OptimizerStep("adam", 0.1, beta2=0.9999))
    batch.check()
    assert OPS.read(batch.store, batch.slots).states_NS[:, -1].tolist() == [4098, 4]


def test_a_long_gradient_is_scaled_and_a_short_one_is_not() -> None:
    batch = SmallBatch([(0, 1), (0, 2)], np.zeros(2), dim=16, name="sgd")
    before = OPS.read(batch.store, batch.slots).values_ND
    grads = np.zeros((2, 16), np.float32)
    grads[0, 3], grads[1, 3] = -8.0, 0.25
    batch.update(grads, OptimizerStep("sgd", 1.0, clip_norm=0.5))
    moved = before - OPS.read(batch.store, batch.slots).values_ND
    np.testing.assert_allclose(moved[:, 3], [-0.5, 0.25], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts_become_priorities_where_that_is_asked_for(dtype: str) -> None:
    keys = [(1, i % 40) for i in range(100)]  # 32 slots: some rows overflow
    batch = SmallBatch(keys, np.zeros(100), dim=16, name="sgd", dtype=dtype)
    grads = np.ones((100, 16), np.float32)
    batch.update(grads, OptimizerStep("sgd", 0.1), count_priority=True, parts=3)
    batch.check()
    words = scores_of(batch.store, batch.slots)
    assert [word >> TICK_BITS for word in words] == [row.count for row in batch.rows]
    assert {word & ((1 << TICK_BITS) - 1) for word in words} == {1}
    batch.update(grads, OptimizerStep("sgd", 0.1))
    assert scores_of(batch.store, batch.slots) == words


def scores_of(store: Any, slots: Any) -> list[int]:
    buckets, overflow = store.arrays.buckets, store.arrays.overflow
    return [
        int(buckets.words[slot // WIDTH * 40 + 24 + slot % WIDTH].astype(np.int64))
        if slot < store.num_slots
        else int(overflow.scores_O[slot - store.num_slots])
        for slot in slots.tolist()
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_key_without_a_slot_is_passed_over(name: str) -> None:
    batch = SmallBatch([(0, 1), (0, 2)], np.zeros(2), dim=16, name=name)
    before = OPS.read(batch.store, batch.slots)
    slots = batch.slots.copy()
    batch.slots[:] = -1
    batch.rows.clear()
    assert batch.update(np.ones((2, 16), np.float32), OptimizerStep(name, 0.1)) == ([], 0)
    for old, new in zip(before, OPS.read(batch.store, slots), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_key_without_occurrences_is_passed_over() -> None:
    batch = SmallBatch([(0, 1), (0, 2)], np.zeros(2), dim=16, name="sgd")
    offsets, order, times = np.array([0, 1, 1]), np.zeros(1, np.int64), np.ones(2, np.int64)
    grads, step = np.ones((1, 16), np.float32), OptimizerStep("sgd", 0.1)
    fresh, _ = OPS.update(batch.store, batch.slots, order, offsets, grads, times, step, False, 0, 2)
    assert fresh.tolist() == batch.slots[:1].tolist()
    assert OPS.read(batch.store, batch.slots).counts_N.tolist() == [1, 0]


def test_what_does_not_fit_the_store_is_refused_before_a_kernel_sees_it() -> None:
    store = OPS.allocate(64, 16, RowLayout(4, 1))
    slots, one, grads = insert(store, [(0, 1)]).slots_U, np.zeros(1, np.int64), np.zeros((1, 4), np.float32)

    def update(grads: Any, step: OptimizerStep, **options: Any) -> None:
        OPS.update(store, slots, one, np.array([0, 1]), grads, one, step, False, 0, 1, **options)

    with pytest.raises(ValueError, match="gradients"):
        update(np.zeros((1, 5), np.float32), OptimizerStep("rowwise-adagrad", 0.1))
    with pytest.raises(ValueError, match="gradients"):
        update(grads.astype(np.float64), OptimizerStep("rowwise-adagrad", 0.1))
    with pytest.raises(ValueError, match="state of width 1"):
        update(grads, OptimizerStep("adam", 0.1))
    with pytest.raises(ValueError, match="must be one of sgd"):
        update(grads, OptimizerStep("adamw", 0.1))
    with pytest.raises(ValueError, match="occurrences"):
        update(grads, OptimizerStep("rowwise-adagrad", 0.1), scales_K=np.ones(2, np.float32))
    ftrl = OPS.allocate(64, 16, RowLayout(4, OPTIMIZERS["ftrl"].state_width(4)))
    with pytest.raises(ValueError, match="divides by lr"):
        OPS.update(ftrl, slots, one, np.array([0, 1]), grads, one, OptimizerStep("ftrl", 0.0), False, 0, 1)
