"""The times of versions change nothing that is learned; catching up is counted apart; what blocks is named."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from springtide.app.training.batches import BatchStream
from springtide.app.training.publisher import PublishSchedule
from springtide.app.training.session import BEHIND_MS, TrainingSession
from springtide.app.training.status import RankReport, TrainerFacts, trainer_condition
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.trainer_status import PublishStatus, RankStatus
from springtide.stream.positions import Partition, Position
from springtide_client.system.clock import wall_ms
from tests.app.training.trainer_env import TrainerEnv, published, records
from tests.support.waiting import DEADLINE_SECONDS, wait_until

PARTITION = Partition("clicks", 0)


def learned(env: TrainerEnv, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    """Learn the topic into a log of its own, with versions so far apart; return how many, and all that is learned."""
    env.configure(
        {
            "source": {"bootstrap_servers": env.broker.address},
            "table": {"disk_path": env.path.parent / f"{name}-spill", "device_bytes": "1104KiB"},
            "model": {"wide": True, "crosses": 4},
            "train": {"min_batch_size": 4},
            "log": {"path": env.path.parent / name},
        }
    )
    monkeypatch.setattr(PublishSchedule, "interval_seconds", lambda self, *, is_behind: seconds)
    trainer = Trainer(env.config, until_end=True)
    trainer.run()
    state = trainer.state
    found = {name: tensor.numpy().copy() for name, tensor in state.learner.dense_tensors().items()}
    found |= {f"state.{name}": tensor.numpy().copy() for name, tensor in state.learner.state_tensors().items()}
    view = env.view()
    found |= {f"user {user}": np.array(str(view.row_info(0, user))) for user in range(37)}
    return len(records(env)), found


def test_what_is_learned_does_not_depend_on_when_versions_are_published(env, monkeypatch):
    env.produce(1500)
    num_often, often = learned(env, "often", 0.0, monkeypatch)
    num_seldom, seldom = learned(env, "seldom", 1000.0, monkeypatch)
    assert num_seldom < 5 < num_often
    assert often.keys() == seldom.keys()
    for name in often:
        np.testing.assert_array_equal(often[name], seldom[name], err_msg=name)


def test_versions_say_until_when_the_trainer_was_catching_up(env, trainer):
    env.produce(1000)
    running = trainer()
    published(env, 1000)
    env.produce(5)
    published(env, 1005)
    metas = [record.meta for record in records(env) if record.meta.record_ms]
    assert metas[0].catching_up
    assert not metas[-1].catching_up
    assert not running.session.is_catching_up
    publishing = running.publisher.status(running.session)
    assert 0 < publishing.interval_seconds <= env.config.log.publish_seconds


def session_of(*, behind_ms: int, num_waiting: int, full_rows: int) -> Any:
    batches = BatchStream.__new__(BatchStream)
    batches.ready = batches._peeked = None
    batches.batcher = SimpleNamespace(num_rows=num_waiting, full_rows=full_rows)  # type: ignore[assignment]
    batches.source = SimpleNamespace(num_waiting=0, has_partitions=True)  # type: ignore[assignment]
    return SimpleNamespace(
        batches=batches,
        source=batches.source,
        behind_ms=BEHIND_MS,
        complete_until_ms=lambda: wall_ms() - behind_ms,
        state=SimpleNamespace(unpublished=SimpleNamespace(is_catching_up=False)),
    )


@pytest.mark.parametrize(
    ("before", "behind_ms", "num_waiting", "after"),
    [
        (True, 0, 0, True),  # as many wait as a full batch holds, and more
        (True, 0, 15, False),
        (False, 0, 10_000, False),  # behind in records, and not for long
        (False, BEHIND_MS + 1000, 0, True),  # this batch takes all, and has waited
    ],
)
def test_catching_up_ends_where_less_than_a_full_batch_waits(before, behind_ms, num_waiting, after):
    session = session_of(behind_ms=behind_ms, num_waiting=num_waiting or 16 * before, full_rows=16)
    session.is_catching_up = before
    TrainingSession.note_lag(session)
    assert session.is_catching_up is session.state.unpublished.is_catching_up is after


def facts(*, stream: float, learned: float, is_catching_up: bool = True, lag: int = 1000) -> TrainerFacts:
    log: Any = SimpleNamespace(is_full=False)
    positions = {PARTITION: Position("id", 5000)}
    state = SimpleNamespace(stream=SimpleNamespace(positions=positions))
    session: Any = SimpleNamespace(
        log=log,
        behind_ms=BEHIND_MS,
        state=state,
        source=SimpleNamespace(status=SimpleNamespace(progress="")),
        positions_read=lambda: positions,
    )
    rank = RankReport(RankStatus(), {PARTITION: 5000 + lag}, {}, 0, 0, "", 0, [], is_catching_up, "")
    gate: Any = SimpleNamespace(held=None)
    config: Any = None
    return TrainerFacts(config, session, gate, learned, stream, learned, PublishStatus(), wall_ms(), [rank])


@pytest.mark.parametrize(
    ("wait", "expected"), [(0.0, BEHIND_MS), (10.0, BEHIND_MS + 10_000), (float("inf"), float("inf"))]
)
def test_what_a_batch_waits_on_purpose_is_not_lag(wait, expected):
    session = TrainingSession.__new__(TrainingSession)
    session._config = SimpleNamespace(train=SimpleNamespace(max_wait_seconds=wait))  # type: ignore[assignment]
    assert session.behind_ms == expected


def test_a_stream_faster_than_the_learner_is_told_with_both_rates():
    condition = trainer_condition(facts(stream=12_000.4, learned=7_716.0))
    assert condition == (
        "catching_up",
        "1000 records behind the stream's end: it brings 12,000 a second, 7,716 are learned",
        "learner",
    )


def test_a_backlog_that_shrinks_blocks_nothing():
    condition = trainer_condition(facts(stream=2_000.0, learned=7_716.0))
    assert condition == ("catching_up", "1000 records behind the stream's end", "")
    assert trainer_condition(facts(stream=2_000.0, learned=7_716.0, lag=0)) == ("running", "", "")
    assert trainer_condition(facts(stream=9.0, learned=7.0, is_catching_up=False)) == ("running", "", "")


def test_what_a_slow_learner_does_not_take_stays_in_kafka(env):
    queue_bytes, num = 200_000, 20_000
    env.configure({"source": {"queue_bytes": queue_bytes}})
    env.produce(num // 2)
    batches = BatchStream(env.config, {}, until_end=False)
    batches.start()
    try:
        queue = batches.source._queue  # type: ignore[attr-defined]
        wait_until(lambda: queue.num_rows > 0, "the first records")
        env.produce(num // 2)
        taken = most = 0
        while taken < num:
            most = max(most, queue.num_bytes)
            assert len(queue) == 1 or queue.num_bytes <= queue_bytes
            batches.poll(DEADLINE_SECONDS)
            while batch := batches.take():
                taken += len(batch)
        assert most > 0
    finally:
        batches.close()
