"""A rank whose store does not answer ends; one that has parted from the others does not."""

import time
from itertools import count

from springtide.app.training.ranks.barrier import LOOKS, Watchdog

SECONDS = 0.05


def end_codes(watchdog: Watchdog, monkeypatch) -> list[int]:
    """Run it in this thread; return with which codes it would have ended the process."""
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        watchdog.stop()

    monkeypatch.setattr("springtide.app.training.ranks.barrier.os._exit", end)
    watchdog.run()
    return codes


def test_a_process_ends_once_the_store_has_not_answered_for_too_long(monkeypatch, capsys):
    assert end_codes(Watchdog(lambda: 7.0, SECONDS), monkeypatch) == [1]
    assert "the other ranks cannot be reached for 0.05 s" in capsys.readouterr().err


def test_time_in_which_this_process_stood_still_does_not_count(monkeypatch):
    looks = count()

    def answered_at() -> float:
        # long ago by the clock, and again with every other look
        number = next(looks)
        if number > 3 * LOOKS:
            watchdog.stop()
        return float(number // 2)

    watchdog = Watchdog(answered_at, SECONDS)
    assert end_codes(watchdog, monkeypatch) == []


def test_a_rank_that_has_lost_another_has_a_moment_for_a_tidy_end(monkeypatch, capsys):
    watchdog = Watchdog(time.monotonic, SECONDS)
    watchdog.end_within(0.0, "rank 1 has ended")
    assert end_codes(watchdog, monkeypatch) == [1]
    assert capsys.readouterr().err == "springtide: rank 1 has ended\n"


def test_a_rank_that_has_parted_is_left_alone():
    watchdog = Watchdog(lambda: float("-inf"), SECONDS)
    watchdog.stop()
    watchdog.run()
