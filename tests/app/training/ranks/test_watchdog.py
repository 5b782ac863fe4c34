"""A rank whose store does not answer ends; one that has parted from the others does not."""

import time

from app.training.ranks.watchdog import Watchdog


def test_a_process_ends_once_the_store_has_not_answered_for_twice_the_timeout(monkeypatch, capsys):
    silent_since, codes = time.monotonic() - 3.0, []
    watchdog = Watchdog(lambda: silent_since, 1.0)

    def end(code):
        codes.append(code)
        watchdog.stop()

    monkeypatch.setattr("app.training.ranks.watchdog.os._exit", end)
    watchdog.run()
    assert codes == [1]
    assert "the other ranks cannot be reached for 2 s" in capsys.readouterr().err


def test_a_rank_that_has_parted_is_left_alone():
    watchdog = Watchdog(lambda: float("-inf"), 1.0)
    watchdog.stop()
    watchdog.run()
