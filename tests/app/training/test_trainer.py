import gc
import os
import signal
import threading
from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from springtide.app.errors import UserError
from springtide.app.training.ranks.loop_decision import LoopDecision
from springtide.app.training.start_position import StartPosition
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import command_status, submit_command
from springtide.app.version_log.trainer_status import PartitionStatus
from springtide.stream.errors import RetriableError
from springtide.stream.kafka.admin import Admin
from springtide_client.log.directory import LogDirectory
from tests.app.training.trainer_env import expected_counts, run_in_thread
from tests.support.waiting import DEADLINE_SECONDS, wait_until


def test_until_end_learns_every_click_once_and_continues_where_it_ended(env):
    env.produce(1000, bad=3)
    first = Trainer(env.config, until_end=True).run()
    assert first.samples_trained == 1000
    assert first.dead_letters == {"bad_json": 3}
    assert first.positions == {"clicks/0": PartitionStatus(1003, 1003, 1003, 0)}
    assert (first.trainer, first.clean_shutdown) == ("stopped", True)
    assert env.status().samples_trained == 1000

    env.produce(500)
    second = Trainer(env.config, until_end=True).run()
    assert second.samples_trained == 1500
    assert second.epoch == first.epoch + 1
    assert second.version > first.version
    assert second.dead_letters == {"bad_json": 3}
    assert env.counts() == dict(Counter(number % 37 for number in range(1500)))
    published = env.view().meta.scores
    for part in ("whole", "window"):
        shown = msgspec.to_builtins(getattr(second.scores, part))
        assert len(shown.pop("curve")) > 1
        assert shown.pop("rmse") is None  # of labels that are values
        assert published[part] == shown


@pytest.mark.parametrize("owns_process", [False, True])
def test_the_heap_is_frozen_only_in_a_process_of_its_own_and_while_it_learns(env, monkeypatch, owns_process):
    frozen, report = [], Trainer.report_status

    def noted(trainer) -> None:
        frozen.append(gc.get_freeze_count() > 0)
        report(trainer)

    monkeypatch.setattr(Trainer, "report_status", noted)
    env.produce(100)
    Trainer(env.config, until_end=True, owns_process=owns_process).run()
    assert set(frozen) == {owns_process}
    assert gc.get_freeze_count() == 0


def test_what_is_open_is_closed_if_another_part_cannot_be_made(env, monkeypatch):
    env.create()
    with monkeypatch.context() as patch:
        patch.setattr("springtide.app.training.trainer.Gate", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Trainer(env.config)
    assert env.status().trainer == "failed"
    assert Trainer(env.config, until_end=True).run().epoch == 2  # the lock is released


def test_while_catching_up_the_next_batch_is_prefetched(env, monkeypatch):
    pairs = []
    learn = TrainingState.learn

    def noted(state, batch, *, next_batch=None, **options) -> None:
        pairs.append((batch, next_batch))
        learn(state, batch, next_batch=next_batch, **options)

    monkeypatch.setattr(TrainingState, "learn", noted)
    env.produce(1000)
    status = Trainer(env.config, until_end=True).run()
    assert status.samples_trained == 1000
    announced = [(next_batch, after) for (_, next_batch), (after, _) in pairwise(pairs) if next_batch is not None]
    assert len(announced) > 5
    assert all(next_batch is after and len(next_batch) == 64 for next_batch, after in announced)


def test_while_caught_up_heartbeats_keep_versions_fresh(env):
    env.produce(100)
    trainer = Trainer(env.config)
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: trainer.state.samples_trained == 100 and trainer.state.stream.complete_until_ms, "catching up")
    first = trainer.state.stream.complete_until_ms
    wait_until(lambda: trainer.state.stream.complete_until_ms > first + 300, "a heartbeat")
    trainer.stop()
    thread.join(DEADLINE_SECONDS)
    (status,) = ended
    assert status.staleness_ms < 5000
    records = list(LogDirectory(env.config.log.path).records(trainer.log.start_head))
    beats = [record for record in records if record.meta.samples_trained == 100]
    assert len(beats) > 2
    assert not any(name.startswith("rows.") for name in beats[-1].tensors())


def test_a_trainer_without_a_topic_waits_visibly_and_learns_when_it_comes(env):
    trainer = Trainer(env.config)
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: "clicks" in env.status().reason, "the reason")
    assert env.status().trainer == "waiting"
    env.produce(10)
    wait_until(lambda: trainer.state.samples_trained == 10, "learning")
    trainer.stop()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == 10


def test_until_end_fails_if_the_topic_does_not_appear(env, monkeypatch):
    # a minute has passed once the broker has answered that it has no such topic
    waited = property(lambda status: 0.0 if status.reason == "not connected yet" else 61.0)
    monkeypatch.setattr("springtide.stream.consumer_loop.SourceStatus.waiting_seconds", waited)
    with pytest.raises(RetriableError, match="clicks"):
        Trainer(env.config, until_end=True).run()
    status = env.status()
    assert status.trainer == "failed"
    assert "clicks" in status.reason


def test_sigterm_commits_and_ends(env):
    before = signal.getsignal(signal.SIGTERM)
    env.produce(200)
    trainer = Trainer(env.config)

    def ask() -> None:
        wait_until(lambda: trainer.state.samples_trained == 200, "learning")
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    status = trainer.run()
    asking.join()
    assert status.samples_trained == 200
    assert status.positions["clicks/0"].committed == 200
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_version_is_not_published_before_the_broker_has_its_dead_letters(env, monkeypatch):
    env.produce(64, bad=1)
    trainer = Trainer(env.config)
    monkeypatch.setattr("springtide.app.training.publisher.FLUSH_SECONDS", 0.0)
    refuse = trainer.dead_letters._try_flush

    def no_broker(seconds: float) -> None:
        raise RetriableError("no broker answers")

    trainer.dead_letters._try_flush = no_broker
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: "dead letters" in env.status().reason, "the reason")
    assert trainer.log.last_encoded == trainer.log.start_head
    trainer.dead_letters._try_flush = refuse
    wait_until(lambda: trainer.log.last_encoded != trainer.log.start_head, "a version")
    trainer.stop()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].dead_letters == {"bad_json": 1}


def test_a_pass_whose_version_cannot_be_published_tries_it_once(env, monkeypatch):
    trainer, tried = Trainer(env.config), []
    monkeypatch.setattr(trainer.publisher, "decide", lambda session: (True, True))
    monkeypatch.setattr(trainer, "publish", lambda: tried.append(1))
    monkeypatch.setattr(trainer, "vote", lambda **_: LoopDecision(may_publish=True))
    trainer.run_once()
    trainer.close()
    assert tried == [1]


def test_commands_are_executed_while_a_batch_waits_for_room_in_the_spill(env):
    env.produce(200)
    trainer = Trainer(env.config)
    table = trainer.state.learner.table
    table.tables[""].has_room = lambda *_: table.lr == 0.5  # type: ignore[method-assign]  # only a command makes room
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: trainer.session.batches.ready is not None, "a batch")
    command = submit_command(env.config.log.path, "limits", {"limits": {"lr": 0.5}})
    wait_until(lambda: trainer.state.samples_trained == 200, "learning")
    wait_until(lambda: command_status(env.config.log.path, command).state == "durable", "the command")
    trainer.stop()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == 200
    assert env.counts() == expected_counts(200)


def test_a_stop_is_heard_while_a_batch_waits_for_room_and_the_next_trainer_learns_it(env):
    env.produce(200)
    trainer = Trainer(env.config)
    trainer.state.learner.table.tables[""].has_room = lambda *_: False  # type: ignore[method-assign]
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: trainer.session.batches.ready is not None, "a batch")
    trainer.stop()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == 0
    assert Trainer(env.config, until_end=True).run().samples_trained == 200
    assert env.counts() == expected_counts(200)


def test_another_topic_is_refused_unless_a_place_to_begin_is_given(env) -> None:
    env.produce(64)
    Trainer(env.config, until_end=True).run()
    env.configure('[source]\ntopic = "orders"\n')
    with pytest.raises(UserError, match="learned from the topic clicks, \\[source\\] topic is orders: set it back"):
        Trainer(env.config, until_end=True)
    with Admin(env.kafka) as admin:
        admin.ensure_topic("orders", num_partitions=1)
    start = StartPosition.parse(["earliest"], None)
    assert Trainer(env.config, until_end=True, start=start).run().samples_trained == 64
    env.produce(32)  # into the old topic
    assert Trainer(env.config, until_end=True).run().samples_trained == 64
