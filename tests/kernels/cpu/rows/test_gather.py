"""Pooled rows against plain Python and torch."""

from typing import Any

import numpy as np
import pytest
import torch

from springtide.kernels.backend import backend
from springtide.kernels.types import NO_SLOT, RowLayout
from tests.kernels.cpu.rows.test_rows import filled

OPS = backend()


def bags(rng: Any, num_keys: int, num_bags: int) -> Any:
    """Offsets of bags, some of them empty."""
    inner = np.sort(rng.integers(0, num_keys + 1, num_bags - 1))
    return np.concatenate([[0], inner, [num_keys]]).astype(np.int64)


def pooled(values: Any, offsets: Any, mode: str) -> tuple[Any, Any]:
    """values (K, D), NaN rows for keys without one: each bag, in float32, and the winners."""
    out = np.zeros((len(offsets) - 1, values.shape[1]), np.float32)
    winners = np.full(out.shape, -1)
    for b in range(len(out)):
        here = [k for k in range(offsets[b], offsets[b + 1]) if not np.isnan(values[k]).any()]
        for k in here:
            if mode == "max":
                better = (values[k] > out[b]) | (winners[b] == -1)
                out[b][better], winners[b][better] = values[k][better], k
            else:
                out[b] += values[k]
        if mode == "mean" and here:
            out[b] /= np.float32(len(here))
    return out, winners


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 100])
def test_bags_are_pooled_in_the_order_of_the_batch(dim: int, mode: str, dtype: str) -> None:
    store, slots, _ = filled(RowLayout(dim, 1, dtype))
    slots[::5] = NO_SLOT
    rng = np.random.default_rng(2)
    inverse = rng.integers(0, 30, 200)
    inverse[:20] = 5 * rng.integers(0, 6, 20)  # bags whose keys all have no row
    offsets = bags(rng, 200, 60)
    out, winners = OPS.gather_pooled(store, slots, inverse, offsets, mode)
    expected, expected_winners = pooled(OPS.gather(store, slots, inverse), offsets, mode)
    np.testing.assert_array_equal(out, expected)
    if mode == "max":
        np.testing.assert_array_equal(winners, expected_winners)
    else:
        assert winners is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 3, 16, 100])
def test_rows_are_summed_by_the_factors_of_their_keys(dim: int, dtype: str) -> None:
    store, slots, _ = filled(RowLayout(dim, 1, dtype))
    slots[::5] = NO_SLOT
    rng = np.random.default_rng(2)
    inverse, offsets = rng.integers(0, 30, 200), bags(rng, 200, 60)
    scales = rng.choice(np.array([0, 1, -2.5, 0.3, 1000], np.float32), 200)
    out, winners = OPS.gather_pooled(store, slots, inverse, offsets, "sum", scales)
    expected, _ = pooled(OPS.gather(store, slots, inverse) * scales[:, None], offsets, "sum")
    assert winners is None
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    ones, _ = OPS.gather_pooled(store, slots, inverse, offsets, "sum", np.ones(200, np.float32))
    np.testing.assert_array_equal(ones, OPS.gather_pooled(store, slots, inverse, offsets, "sum")[0])


def test_factors_are_refused_where_rows_are_not_summed_and_where_their_number_is_not_that_of_the_keys() -> None:
    store, slots, _ = filled(RowLayout(4, 1))
    batch = store, slots, np.arange(3), np.array([0, 3])
    for mode in ("mean", "max"):
        with pytest.raises(ValueError, match='must be "sum"'):
            OPS.gather_pooled(*batch, mode, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="shape"):
        OPS.gather_pooled(*batch, "sum", np.ones(2, np.float32))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_pooling_equals_torchs_embedding_bag(mode: str) -> None:
    store, slots, columns = filled(RowLayout(16, 1))
    rng = np.random.default_rng(4)
    inverse, offsets = rng.integers(0, 30, 100), bags(rng, 100, 30)
    out, _ = OPS.gather_pooled(store, slots, inverse, offsets, mode)
    theirs = torch.nn.functional.embedding_bag(
        torch.from_numpy(inverse), torch.from_numpy(columns.values_ND), torch.from_numpy(offsets[:-1]), mode=mode
    )
    np.testing.assert_allclose(out, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_of_equals_the_first_wins() -> None:
    store, slots, columns = filled(RowLayout(4, 1), num=3)
    columns.values_ND[:] = [[1, 2, 3, -np.inf], [1, 3, 3, -np.inf], [0, 3, 2, -np.inf]]
    OPS.scatter(store, slots, columns)
    out, winners = OPS.gather_pooled(store, slots, np.arange(3), np.array([0, 3, 3]), "max")
    assert out.tolist() == [[1, 3, 3, -np.inf], [0, 0, 0, 0]]
    assert winners is not None
    assert winners.tolist() == [[0, 1, 0, 0], [-1, -1, -1, -1]]


def test_bags_that_are_none_are_refused() -> None:
    store, slots, _ = filled(RowLayout(4, 1), num=3)
    with pytest.raises(ValueError, match="median"):
        OPS.gather_pooled(store, slots, np.arange(3), np.array([0, 3]), "median")
    for offsets in ([], [0, 2], [1, 3], [0, 4], [0, 9, 3]):
        with pytest.raises(ValueError, match="from 0 to the number of keys, 3"):
            OPS.gather_pooled(store, slots, np.arange(3), np.array(offsets, np.int64), "sum")
