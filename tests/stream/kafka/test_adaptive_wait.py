import pytest

from stream.kafka.adaptive_wait import MAX_WAIT_MS, AdaptiveFetchWait


def test_a_full_answer_from_far_behind_asks_for_no_more_time():
    wait = AdaptiveFetchWait(5)
    for _ in range(10):
        wait.observe_response(9_000, 1_000_000, is_full=True)
    assert wait.ms == 5


def test_answers_that_do_not_keep_up_are_granted_twice_the_time():
    wait = AdaptiveFetchWait(5)
    granted = []
    for _ in range(9):
        wait.observe_response(100, 150)
        granted.append(wait.ms)
    assert granted == [10, 20, 40, 80, 160, 320, MAX_WAIT_MS, MAX_WAIT_MS, MAX_WAIT_MS]


def test_an_answer_that_brings_nothing_though_there_is_something_is_granted_more_time():
    wait = AdaptiveFetchWait(0)
    wait.observe_response(0, 1)
    assert wait.ms == 2


def test_what_came_while_an_answer_was_made_asks_for_no_more_time():
    wait = AdaptiveFetchWait(5)
    for _ in range(10):
        wait.observe_response(200, 100)
    assert wait.ms == 5


def test_after_one_slow_moment_the_wait_comes_down_within_a_second():
    wait = AdaptiveFetchWait(5)
    for _ in range(5):
        wait.observe_response(0, 100)
    assert wait.ms == 160
    seconds = 0.0
    while wait.ms > 10:
        seconds += wait.ms / 1000
        wait.observe_response(100, 0)
    assert seconds == pytest.approx(1.5, abs=0.1)


def test_the_wait_keeps_room_for_what_a_look_takes():
    wait = AdaptiveFetchWait(5)
    for _ in range(5):
        wait.observe_response(0, 100)
    for n in range(100):
        wait.observe_delay(n % 8)  # looks of 8 ms that end anywhere
        wait.observe_response(100, 0)
    assert wait.ms == 10


def test_one_late_answer_of_many_is_no_reason_to_wait():
    wait = AdaptiveFetchWait(5)
    for late_ms in (*[1.0] * 8, 300.0, *[1.0] * 7):
        wait.observe_delay(late_ms)
    for _ in range(3):
        wait.observe_response(0, 100)
    for _ in range(100):
        wait.observe_response(100, 0)
    assert wait.ms == 5
