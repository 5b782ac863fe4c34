import pytest

from tests.bench.step.step import fit


def test_a_straight_line_is_found_whatever_its_largest_batch_costs() -> None:
    fixed_ms, sample_ms = fit({1: 0.52, 64: 1.78, 4096: 82.42})
    assert fixed_ms == pytest.approx(0.5)
    assert sample_ms == pytest.approx(0.02)


def test_a_small_batch_counts_as_much_as_a_large_one() -> None:
    fixed_ms, _ = fit({1: 0.5, 16: 0.5, 4096: 90.0})
    assert fixed_ms == pytest.approx(0.5, rel=0.5)
