"""When versions are published: postponed while dead letters cannot be delivered, and no longer than that."""

from types import SimpleNamespace
from typing import Any

import pytest

from springtide.app.training.publisher import (
    MAX_SECONDS,
    MIN_SECONDS,
    Publisher,
    PublishSchedule,
)
from springtide.app.training.ranks.ranks import Ranks
from springtide.stream.errors import StreamError


class Letters:
    """Dead letters that the broker refuses while `error` is set."""

    error: StreamError | None = None

    def flush(self, seconds: float) -> None:
        if self.error is not None:
            raise self.error


def session(*, is_behind: bool = False, changed: bool = True, complete_until_ms: int = 0) -> Any:
    """A session with something to publish."""
    clock = SimpleNamespace(mark_idle=lambda idle, limit_ms: None)
    stream = SimpleNamespace(positions={}, clock=clock, complete_until_ms=0)
    state = SimpleNamespace(
        learner=SimpleNamespace(merge_gathered=lambda: None, require_same_net=lambda: None),
        scores=None,
        samples_trained=1,
        unpublished=SimpleNamespace(has_changes=changed),
        max_unpublished_bytes=0,
        must_expire=False,
        stream=stream,
        checkpoint=lambda **times: (None, {}),
    )
    log = SimpleNamespace(
        is_full=False,
        is_stalled=False,
        durable=None,
        budget=SimpleNamespace(max_version_bytes=1),
        states=SimpleNamespace(is_idle=True),
        ends_exact=True,
        cpu_seconds=0.0,
        appended_bytes=0,
        append_owned=lambda meta, arrays, net: 1,
    )
    on_published = SimpleNamespace(
        on_published=lambda *of: None, on_checkpoint=lambda version: None, has_pending=True, has_unpublished=False
    )
    return SimpleNamespace(
        state=state,
        ranks=Ranks(),
        exchange=lambda: SimpleNamespace(idle=set(), limit_ms=0, complete_until_ms=complete_until_ms),
        log=log,
        batches=SimpleNamespace(is_behind=is_behind),
        complete_until_ms=lambda: complete_until_ms,
        spill_gc=on_published,
        commands=on_published,
        net=SimpleNamespace(take=lambda exact: ({}, None), on_appended=lambda version: None),
        committed=on_published,
    )


def test_a_delivered_flush_ends_the_postponement() -> None:
    now, letters = [100.0], Letters()
    gate: Any = SimpleNamespace(judge=lambda *of: None, on_published=lambda *of: None)
    publisher = Publisher(PublishSchedule(0.5, clock=lambda: now[0]), gate, letters, clock=lambda: now[0])  # type: ignore[arg-type]
    letters.error = StreamError("no broker")
    for _ in range(6):
        assert not publisher.publish(session())
    assert publisher.seconds_until_due(session()) > 10
    assert publisher.decide(session()) == (False, False)
    assert publisher.reason == "dead letters cannot be delivered: no broker"

    letters.error = None
    assert publisher.publish(session())
    assert publisher.reason == ""
    assert publisher.decide(session()) == (True, False)
    now[0] += 0.6
    assert publisher.decide(session())[1]


def test_behind_versions_are_cut_seldom_and_at_once_when_caught_up() -> None:
    now = [100.0]
    gate: Any = SimpleNamespace(judge=lambda *of: None, on_published=lambda *of: None)
    publisher = Publisher(PublishSchedule(0.5, clock=lambda: now[0]), gate, Letters(), clock=lambda: now[0])  # type: ignore[arg-type]
    assert publisher.publish(session(is_behind=True))
    now[0] += 0.1
    assert not publisher.decide(session(is_behind=True))[1]
    assert publisher.decide(session(is_behind=False))[1]
    now[0] += 0.5
    assert publisher.decide(session(is_behind=True))[1]


def test_heartbeats_are_rarer_than_samples_and_need_a_newer_time() -> None:
    now = [100.0]
    gate: Any = SimpleNamespace(judge=lambda *of: None, on_published=lambda *of: None)
    publisher = Publisher(PublishSchedule(0.02, clock=lambda: now[0]), gate, Letters(), clock=lambda: now[0])  # type: ignore[arg-type]
    assert publisher.publish(session())
    now[0] += 0.05
    assert not publisher.decide(session(changed=False, complete_until_ms=1))[1]
    assert publisher.decide(session())[1]
    now[0] += 0.06
    assert publisher.decide(session(changed=False, complete_until_ms=1))[1]
    assert not publisher.decide(session(changed=False))[1]


def schedule_of(cost_seconds: float, num_bytes: int = 0, *, publish_seconds: float = 0.5) -> PublishSchedule:
    schedule = PublishSchedule(publish_seconds, 1_000_000)
    for _ in range(100):
        schedule.add_cost(cost_seconds, num_bytes)
    return schedule


def test_versions_take_a_fifth_of_a_core_and_come_no_later_than_publish_seconds() -> None:
    cheap, dear, dearest = schedule_of(0.001), schedule_of(0.02), schedule_of(10.0)
    assert cheap.interval_seconds(is_behind=False) == MIN_SECONDS
    assert dear.interval_seconds(is_behind=False) == pytest.approx(0.1)
    assert dearest.interval_seconds(is_behind=False) == 0.5
    assert schedule_of(10.0, publish_seconds=0.003).interval_seconds(is_behind=False) == 0.003


def test_large_versions_are_as_far_apart_as_their_bytes_ask() -> None:
    schedule = schedule_of(0.001, 100_000)
    assert schedule.interval_seconds(is_behind=False) == pytest.approx(0.1)


def test_behind_versions_take_a_twentieth_and_publish_seconds_at_least() -> None:
    assert schedule_of(0.001).interval_seconds(is_behind=True) == 0.5
    assert schedule_of(0.1).interval_seconds(is_behind=True) == pytest.approx(2.0)
    assert schedule_of(60.0).interval_seconds(is_behind=True) == MAX_SECONDS
    assert schedule_of(60.0, publish_seconds=90.0).interval_seconds(is_behind=True) == 90.0


def test_the_next_version_counts_from_the_start_of_the_one_before() -> None:
    now = [100.0]
    schedule = PublishSchedule(0.5, clock=lambda: now[0])
    assert schedule.due_at(is_behind=True) < now[0]
    schedule.start()
    assert schedule.due_at(is_behind=False) == pytest.approx(100.0 + MIN_SECONDS)
    assert schedule.due_at(is_behind=True) == pytest.approx(100.5)


def test_a_version_costs_what_loop_and_writer_take_and_a_new_log_begins_at_0() -> None:
    schedule = PublishSchedule(0.5)
    log: Any = SimpleNamespace(cpu_seconds=7.0, appended_bytes=70)
    schedule.add(0.5, log)  # what the writer took before is not known
    assert (schedule.cost_seconds, schedule.num_bytes) == (0.0, 0.0)
    log.cpu_seconds, log.appended_bytes = 7.25, 170
    schedule.add(0.25, log)
    assert (schedule.cost_seconds, schedule.num_bytes) == (pytest.approx(0.1), pytest.approx(20.0))
    schedule.add(0.1, SimpleNamespace(cpu_seconds=0.0, appended_bytes=0))  # type: ignore[arg-type]
    assert (schedule.cost_seconds, schedule.num_bytes) == (pytest.approx(0.1), pytest.approx(16.0))
