"""Hit rates on short streams; `springtide bench table.churn` measures long ones."""

import pytest

from tests.bench.table.hit_rates import compare, zipf_stream


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.3])
def test_a_table_holds_what_an_exact_cache_would_within_a_point(policy: str, exponent: float) -> None:
    rate = compare(f"Zipf {exponent}", zipf_stream(exponent, 60_000, 10_000), policy, 0.1)
    assert rate.holds, rate
