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
    meter.continue_from(created_ms=100_020, complete_until_ms=100_000)
    # six seconds without a trainer: its first version is complete, but its records have waited
    assert meter.observe([100_100], created_ms=106_000, complete_until_ms=105_990, servable_ms=106_010) == "catching_up"
    assert meter.observe([106_000], created_ms=106_050, complete_until_ms=106_040, servable_ms=106_060) == "caught_up"
    assert meter.caught_up.percentiles(now_ms=106_100) == {"p50": 60.0, "p99": 60.0}
    assert meter.catching_up.document() == {"p50": 5910.0, "p99": 5910.0, "seconds": 0.05, "ended_ms": 106_060}


def test_versions_from_before_the_server_count_nowhere_but_are_continued_from():
    meter = FreshnessMeter()
    meter.observe([1], created_ms=50_000, complete_until_ms=49_600, servable_ms=90_000, is_live=False)
    assert meter.catching_up.document() is meter.caught_up.percentiles(now_ms=90_000) is None
    assert meter.observe([49_500], created_ms=50_100, complete_until_ms=50_050, servable_ms=50_200) == "caught_up"


def test_the_tail_of_a_catch_up_is_no_freshness():
    meter = FreshnessMeter()
    meter.continue_from(created_ms=100_000, complete_until_ms=90_000)
    # twice as fast as the stream: half a second less behind with each version
    for version, lag_ms in enumerate((3_500, 3_000, 2_500, 2_000, 1_500, 1_000, 500, 100)):
        at_ms = 101_000 + 500 * version
        until_ms = at_ms - lag_ms
        phase = meter.observe([until_ms], created_ms=at_ms, complete_until_ms=until_ms, servable_ms=at_ms)
        assert phase == ("caught_up" if lag_ms == 100 else "catching_up")
    assert meter.caught_up.percentiles(now_ms=at_ms) == {"p50": 100.0, "p99": 100.0}


def test_a_trainer_that_stays_a_second_behind_has_caught_up_after_a_while():
    meter = FreshnessMeter()
    meter.continue_from(created_ms=100_000, complete_until_ms=90_000)
    times = range(101_000, 116_000, 500)
    phases = [meter.observe([ms - 1_000], created_ms=ms, complete_until_ms=ms - 1_000, servable_ms=ms) for ms in times]
    assert phases == ["catching_up"] * 22 + ["caught_up"] * 8


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
