from springtide.app.serving.model.freshness import CatchUp, Freshness, FreshnessMeter


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


def test_records_that_waited_for_the_trainer_do_not_count_as_freshness():
    meter = FreshnessMeter()
    assert meter.observe([100_100], catching_up=True, servable_ms=106_010) == "catching_up"
    assert meter.observe([106_000], catching_up=False, servable_ms=106_060) == "caught_up"
    assert meter.caught_up.percentiles(now_ms=106_100) == {"p50": 60.0, "p99": 60.0}
    assert meter.catching_up.document() == {"p50": 5910.0, "p99": 5910.0, "seconds": 0.05, "ended_ms": 106_060}


def test_versions_from_before_the_server_count_nowhere():
    meter = FreshnessMeter()
    for catching_up in (True, False):
        meter.observe([1], catching_up=catching_up, servable_ms=90_000, is_live=False)
    assert meter.catching_up.document() is meter.caught_up.percentiles(now_ms=90_000) is None


def test_the_newest_catch_up_is_described_while_it_goes_on_and_afterwards():
    catch_up = CatchUp()
    catch_up.end(500)
    assert catch_up.document() is None
    catch_up.observe([0], servable_ms=1_000)
    catch_up.observe([500], servable_ms=3_000)
    assert catch_up.document() == {"p50": 1000.0, "p99": 2500.0, "seconds": 2.0, "ended_ms": None}
    catch_up.end(4_000)
    catch_up.end(5_000)
    assert catch_up.document() == {"p50": 1000.0, "p99": 2500.0, "seconds": 3.0, "ended_ms": 4000}
    catch_up.observe([8_900], servable_ms=9_000)
    assert catch_up.document() == {"p50": 100.0, "p99": 100.0, "seconds": 0.0, "ended_ms": None}
