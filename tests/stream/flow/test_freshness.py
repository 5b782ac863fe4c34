from springtide.stream.flow.freshness import MAX_OBSERVATIONS, FreshnessTracker
from springtide.stream.positions import Partition, Position

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
