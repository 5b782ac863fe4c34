"""How long after a version the next one may be written."""

import pytest

from springtide.app.training.publish_schedule import BEHIND_SECONDS, MAX_SECONDS, PublishSchedule


def test_a_version_may_be_cut_every_publish_seconds_while_caught_up() -> None:
    now = [100.0]
    schedule = PublishSchedule(0.02, clock=lambda: now[0])
    assert schedule.due_at(is_behind=True) < now[0]
    schedule.start()
    assert schedule.due_at(is_behind=False) == pytest.approx(100.02)
    assert schedule.due_at(is_behind=True) == pytest.approx(100.0 + BEHIND_SECONDS)


def test_the_interval_bounds_what_versions_cost() -> None:
    schedule = PublishSchedule(0.02)
    for _ in range(100):
        schedule.add_cost(0.1)
    assert schedule.interval_seconds(is_behind=False) == pytest.approx(0.4)
    assert schedule.interval_seconds(is_behind=True) == pytest.approx(2.0)
    for _ in range(100):
        schedule.add_cost(60.0)
    assert schedule.interval_seconds(is_behind=True) == MAX_SECONDS
    for _ in range(100):
        schedule.add_cost(0.001)
    assert schedule.interval_seconds(is_behind=False) == 0.02


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_longer_publish_seconds_is_kept(is_behind: bool) -> None:
    schedule = PublishSchedule(60.0)
    schedule.add_cost(5.0)
    assert schedule.interval_seconds(is_behind=is_behind) == 60.0
