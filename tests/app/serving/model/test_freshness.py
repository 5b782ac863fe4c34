from app.serving.model.freshness import Freshness


def test_percentiles_are_of_the_recent_window():
    freshness = Freshness(window_ms=1000)
    assert freshness.percentiles(now_ms=0) is None
    freshness.observe([0], servable_ms=5_000)
    freshness.observe(range(9_900, 10_000), servable_ms=10_000)
    assert freshness.percentiles(now_ms=10_100) == {"p50": 50.0, "p99": 99.0}
    assert freshness.percentiles(now_ms=12_000) is None


def test_a_single_sample_is_every_percentile():
    freshness = Freshness()
    freshness.observe([70], servable_ms=100)
    assert freshness.percentiles(now_ms=100) == {"p50": 30.0, "p99": 30.0}


def test_a_record_from_the_future_has_age_0():
    freshness = Freshness()
    freshness.observe([170], servable_ms=100)
    assert freshness.percentiles(now_ms=100) == {"p50": 0.0, "p99": 0.0}
