"""Rows that travel: their bytes, their error, and what is not finite."""

import pytest
import torch

from embeddings.sharding.row_format import FORMATS, RowFormat

ROWS = torch.tensor([[1.0, -2.5, 0.0], [0.0, 0.0, 0.0], [1e-30, -1e-30, 3e-31], [1e30, 5e29, -1e30]])


WIDTHS = [("float32", 12, 0.0), ("bfloat16", 6, 2**-8), ("int8", 7, 1 / 127)]


@pytest.mark.parametrize(("name", "num_bytes", "error"), WIDTHS)
def test_rows_come_back_within_the_error_of_their_format(name: str, num_bytes: int, error: float) -> None:
    for seed in (None, 3):
        row_format = RowFormat(name, 3, seed=seed)
        encoded = row_format.encode(ROWS)
        assert (encoded.dtype, tuple(encoded.shape), row_format.num_bytes) == (torch.uint8, (4, num_bytes), num_bytes)
        largest = ROWS.abs().amax(dim=1, keepdim=True)
        assert ((row_format.decode(encoded) - ROWS).abs() <= error * largest).all()


def test_stochastic_rounding_has_the_right_mean_and_repeats_itself() -> None:
    rows = torch.full((20_000, 2), 0.3)
    rows[:, 1] = 1.0
    row_format = RowFormat("int8", 2, seed=1)
    first, again, other = (row_format.encode(rows, step) for step in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    decoded = row_format.decode(first)
    assert len(decoded[:, 0].unique()) == 2
    assert abs(float(decoded[:, 0].mean()) - 0.3) < 2e-4  # the standard error is 3e-5


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_that_is_not_finite_stays_so(name: str) -> None:
    rows = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0], [2.0, 1.0]])
    decoded = RowFormat(name, 2, seed=1).decode(RowFormat(name, 2, seed=1).encode(rows))
    assert decoded.isfinite().all(dim=1).tolist() == [False, False, True]


@pytest.mark.parametrize("name", FORMATS)
def test_no_rows_and_one(name: str) -> None:
    row_format = RowFormat(name, 3, seed=1)
    assert row_format.decode(row_format.encode(torch.zeros(0, 3))).shape == (0, 3)
    assert row_format.decode(row_format.encode(torch.ones(1, 3))).tolist() == [[1.0, 1.0, 1.0]]
