from springtide.stream.positions import Partition, Position
from springtide.stream.watermark import MAX_OBSERVATIONS, FreshnessTracker, WatermarkClock

A, B = Partition("clicks", 0), Partition("clicks", 1)


def test_the_clock_follows_the_slowest_partition():
    clock = WatermarkClock()
    assert clock.observe({A: 100}) == 100
    assert clock.observe({A: 300, B: 200}) == 200
    assert clock.observe({B: 250}) == 250


def test_the_clock_never_goes_back():
    clock = WatermarkClock()
    clock.observe({A: 100})
    assert clock.observe({A: 50}) == 100
    assert clock.observe({B: 20}) == 100


def test_an_idle_partition_does_not_hold_the_others_back():
    clock = WatermarkClock()
    clock.observe({A: 100, B: 100})
    assert clock.observe({A: 500}) == 100
    assert clock.mark_idle({B}) == 500
    assert clock.observe({A: 600}) == 600
    assert clock.observe({B: 200}) == 600


def test_an_idle_partition_counts_again_from_its_next_record_on():
    clock = WatermarkClock()
    clock.observe({A: 100, B: 100})
    clock.mark_idle({B})
    clock.observe({A: 500})
    clock.observe({B: 550})
    assert clock.observe({A: 900}) == 550


def test_the_clock_stops_while_all_partitions_are_idle_and_keeps_its_limit():
    clock = WatermarkClock()
    clock.observe({A: 100, B: 700})
    assert clock.mark_idle({B}) == 100
    assert clock.mark_idle({A}) == 100
    other = WatermarkClock()
    other.observe({A: 100, B: 700})
    assert other.mark_idle({A}, limit_ms=650) == 650


def test_a_partition_without_records_is_not_counted_as_idle():
    clock = WatermarkClock()
    clock.observe({A: 100})
    clock.mark_idle({B})
    assert clock.idle == set()


def test_the_clock_stays_below_its_limit():
    clock = WatermarkClock()
    assert clock.observe({A: 10_000}, limit_ms=9_000) == 9_000


def test_the_clock_resumes_from_its_saved_state():
    clock = WatermarkClock()
    clock.observe({A: 300, B: 200})
    again = WatermarkClock(clock.now_ms, clock.watermarks)
    assert again.observe({B: 400}) == clock.observe({B: 400}) == 300
    clock.mark_idle({A})
    again = WatermarkClock(clock.now_ms, clock.watermarks, clock.idle)
    assert again.observe({B: 500}) == clock.observe({B: 500}) == 500


CLICKS = Partition("clicks", 0)


def at(offset, topic_id="t"):
    return {CLICKS: Position(topic_id, offset)}


def test_the_time_of_an_end_counts_once_the_end_is_reached():
    tracker = FreshnessTracker()
    assert tracker.complete_until_ms(at(0)) is None
    tracker.observe_ends(1000, at(5))
    tracker.observe_ends(2000, at(8))
    assert tracker.complete_until_ms(at(4)) is None
    assert tracker.complete_until_ms(at(5)) == 1000
    assert tracker.complete_until_ms(at(9)) == 2000


def test_the_time_of_an_unchanged_end_moves_on():
    tracker = FreshnessTracker()
    tracker.observe_ends(1000, at(5))
    assert tracker.complete_until_ms(at(5)) == 1000
    tracker.observe_ends(3000, at(5))
    assert tracker.complete_until_ms(at(5)) == 3000


def test_the_ends_of_a_re_created_topic_replace_those_of_the_old_one():
    tracker = FreshnessTracker()
    tracker.observe_ends(1000, at(5, "old"))
    tracker.observe_ends(2000, at(1, "new"))
    assert tracker.complete_until_ms(at(5, "old")) is None
    assert tracker.complete_until_ms(at(1, "new")) == 2000


def test_a_reader_far_behind_keeps_a_bounded_number_of_ends():
    tracker = FreshnessTracker()
    for n in range(10 * MAX_OBSERVATIONS):
        tracker.observe_ends(n, at(n))
    assert len(tracker._observations) <= MAX_OBSERVATIONS
    last = 10 * MAX_OBSERVATIONS - 1
    assert tracker.complete_until_ms(at(last)) == last
