import pytest

from springtide.stream.kafka.adaptive_wait import MAX_WAIT_MS, AdaptiveFetchWait


def test_full_responses_far_behind_the_end_do_not_lengthen_the_wait():
    wait = AdaptiveFetchWait(5)
    for _ in range(10):
        wait.observe_response(9_000, 1_000_000, is_full=True)
    assert wait.ms == 5


def test_the_wait_doubles_while_responses_fall_behind():
    wait = AdaptiveFetchWait(5)
    granted = []
    for _ in range(9):
        wait.observe_response(100, 150)
        granted.append(wait.ms)
    assert granted == [10, 20, 40, 80, 160, 320, MAX_WAIT_MS, MAX_WAIT_MS, MAX_WAIT_MS]


def test_an_empty_response_before_the_end_lengthens_the_wait():
    wait = AdaptiveFetchWait(0)
    wait.observe_response(0, 1)
    assert wait.ms == 2


def test_records_produced_during_a_response_do_not_lengthen_the_wait():
    wait = AdaptiveFetchWait(5)
    for _ in range(10):
        wait.observe_response(200, 100)
    assert wait.ms == 5


def test_the_wait_decays_after_one_slow_moment():
    wait = AdaptiveFetchWait(5)
    for _ in range(5):
        wait.observe_response(0, 100)
    assert wait.ms == 160
    seconds = 0.0
    while wait.ms > 10:
        seconds += wait.ms / 1000
        wait.observe_response(100, 0)
    assert seconds == pytest.approx(1.5, abs=0.1)


def test_the_wait_leaves_room_for_a_whole_scan():
    wait = AdaptiveFetchWait(5)
    for _ in range(5):
        wait.observe_response(0, 100)
    for n in range(100):
        wait.observe_delay(n % 8)  # looks of 8 ms that end anywhere
        wait.observe_response(100, 0)
    assert wait.ms == 10


def test_one_late_response_among_many_does_not_lengthen_the_wait():
    wait = AdaptiveFetchWait(5)
    for late_ms in (*[1.0] * 8, 300.0, *[1.0] * 7):
        wait.observe_delay(late_ms)
    for _ in range(3):
        wait.observe_response(0, 100)
    for _ in range(100):
        wait.observe_response(100, 0)
    assert wait.ms == 5
