"""Rows that travel: their bytes, their error, and what is not finite."""

import pytest
import torch

from springtide.embeddings.sharding.row_format import FORMATS, RowFormat

ROWS = torch.tensor([[1.0, -2.5, 0.0], [0.0, 0.0, 0.0], [1e-30, -1e-30, 3e-31], [1e30, 5e29, -1e30]])


WIDTHS = [("float32", 12, 0.0), ("bfloat16", 8, 2**-8), ("int8", 8, 1 / 127)]


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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_the_kernels_of_the_cpu_equal_the_plain_form_bit_by_bit(name: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    rows, order = torch.randn(500, dim + 2, generator=generator), torch.randperm(500, generator=generator)[:300]
    rows *= 10.0 ** torch.randint(-44, 38, (500, 1), generator=generator)
    rows[::50] = 0.0
    numbers, step = torch.randn(500, 2, generator=generator), 3
    for seed in (None, 0, 2**63):
        row_format = RowFormat(name, dim, seed=seed)
        packed = row_format.pack(rows, order, numbers, step)
        assert torch.equal(packed, row_format.pack_plainly(rows, order, numbers, step))
        assert packed.shape == (300, row_format.num_bytes + 8)
        anywhere = torch.cat([torch.zeros(1, dtype=torch.uint8), packed.reshape(-1)])[1:].reshape(packed.shape)
        found, plain = ((torch.full((500, dim + 2), 7.0), torch.zeros(500, 2)) for _ in range(2))
        row_format.unpack(anywhere, order, *found)
        row_format.unpack_plainly(anywhere, order, *plain)
        for one, expected in zip(found, plain, strict=True):
            assert torch.equal(one.view(torch.int32), expected.view(torch.int32))
        for one, expected in zip(row_format.unpacked(anywhere), (plain[0][order, :dim], numbers[order]), strict=True):
            assert torch.equal(one, expected)
        assert torch.equal(row_format.pack(rows, None, None, step), row_format.encode(rows[:, :dim], step))
