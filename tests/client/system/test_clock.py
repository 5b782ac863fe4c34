"""Pauses double up to a limit, begin again after a success, and jitter only shortens them."""

from springtide_client.system.clock import Backoff


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.fail() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_success_the_first_pause_comes_again() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.fail()
    backoff.fail()
    backoff.succeed()
    assert backoff.fail() == 0.5


def test_a_pause_is_over_when_its_seconds_have_passed() -> None:
    now = [100.0]
    backoff = Backoff(2.0, 8.0, clock=lambda: now[0])
    assert backoff.is_over
    assert backoff.remaining_seconds == 0.0
    backoff.fail()
    assert (backoff.is_over, backoff.remaining_seconds) == (False, 2.0)
    now[0] += 1.5
    assert (backoff.is_over, backoff.remaining_seconds) == (False, 0.5)
    now[0] += 0.5
    assert backoff.is_over


def test_jitter_shortens_a_pause_by_at_most_its_part() -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.25)
    pauses = [backoff.fail() for _ in range(200)]
    assert all(0.75 <= pause <= 1.0 for pause in pauses)
    assert len(set(pauses)) > 1
