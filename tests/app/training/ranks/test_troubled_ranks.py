"""Trouble of one rank: what it waits for, all wait for and the status says; what it has lost, all begin again."""

import errno
import threading
from collections.abc import Iterator

import pytest

from springtide.app.training.ranks.errors import FinalError
from springtide.app.training.ranks.ranks import launch_name
from springtide.app.training.start_position import StartPosition
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.read.corruption import report_corruption
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.errors import StreamError
from springtide_client.log.directory import LogDirectory
from tests.app.training.ranks.thread_trainers import on_trainers, running_ranks
from tests.app.training.trainer_env import TrainerEnv, expected_counts, published, records
from tests.support.damage import flip
from tests.support.waiting import DEADLINE_SECONDS, wait_until


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Iterator[TrainerEnv]:
    """A topic of two partitions, and a log that goes on from test to test."""
    folder = tmp_path_factory.mktemp("ranks")
    with EmbeddedBroker(folder / "log") as broker:
        env = TrainerEnv(folder, broker)
        env.create(partitions=2)
        yield env


@pytest.fixture
def topic(log) -> TrainerEnv:
    """100 more clicks in each partition."""
    for partition in range(2):
        log.produce(100, partition=partition)
    return log


def run_beside(env, work, *, until_end: bool = True) -> tuple[threading.Thread, list]:
    """Run two ranks in threads of their own."""
    ended: list = []
    thread = threading.Thread(target=lambda: ended.extend(on_trainers(env, 2, work, until_end=until_end)), daemon=True)
    thread.start()
    return thread, ended


def test_the_status_says_whose_spill_is_full_and_the_ranks_go_on_agreeing(topic):
    env, has_room = topic, threading.Event()
    passes = [0, 0]

    def run(trainer: Trainer):
        rank, table, vote = trainer.ranks.rank, trainer.state.learner.sharded_table.tables[0], trainer.vote

        def is_full() -> bool:
            return rank == 1 and not has_room.is_set()

        def count(**facts):
            passes[rank] += 1
            return vote(**facts)

        table.has_room, trainer.vote = lambda *_: not is_full(), count
        trainer.state.learner.table.stall_reason = lambda: "the spill is full" if is_full() else ""
        return trainer.run()

    thread, ended = run_beside(env, run)
    wait_until(lambda: env.status().reason == "rank 1: the spill is full", lambda: env.status().reason)
    assert env.status().trainer == "waiting"
    assert [rank.reason for rank in env.status().ranks] == ["", "the spill is full"]
    before = list(passes)
    wait_until(lambda: all(now > then + 2 for now, then in zip(passes, before, strict=True)), "passes of the loop")
    has_room.set()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == env.num
    assert env.counts() == expected_counts(env.num)


def test_the_slowest_ranks_disk_holds_all_back(topic):
    env, has_room, trainers = topic, threading.Event(), []
    before = env.num - 200

    def run(trainer: Trainer):
        segments = trainer.log._queue.segments
        write = segments.write

        def refuse(frame) -> None:
            if not has_room.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            write(frame)

        if trainer.ranks.rank == 1:
            segments.write = refuse
        trainers.append(trainer)
        return trainer.run()

    thread, ended = run_beside(env, run, until_end=False)
    wait_until(lambda: "No space left on device" in env.status().reason, lambda: env.status().reason)
    assert all(record.meta.samples_trained <= before for record in records(env))
    has_room.set()
    published(env, env.num)
    trainers[0].stop()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == env.num
    assert env.counts() == expected_counts(env.num)


def test_dead_letters_that_one_rank_cannot_deliver_end_all_with_one_error(topic):
    env = topic
    env.produce(0, bad=2, partition=1)

    def run(trainer: Trainer):
        def refuse(seconds: float) -> None:
            raise StreamError("no broker takes them")

        if trainer.ranks.rank == 1:
            trainer.dead_letters.flush = refuse
        with pytest.raises(FinalError) as ended:
            trainer.run()
        return str(ended.value)

    texts = on_trainers(env, 2, run, until_end=True)
    assert set(texts) == {"rank 1: dead letters cannot be delivered: no broker takes them"}
    assert env.status().reason == texts[0]
    assert on_trainers(env, 2, until_end=True)[0].samples_trained == env.num


def test_a_shard_record_that_is_corrupt_is_repaired_by_all_ranks_while_they_run(topic):
    env, path = topic, topic.config.log.path
    with running_ranks(env, 2) as ranks:
        published(env, env.num)
        wait_until(lambda: env.status().durable_version == env.status().version, "a durable version")
        epoch = env.status().epoch
        shard = path / f"seg-{epoch:010d}-00001-000000.log"
        flip(shard)
        report_corruption(LogDirectory(path), "found by a test")
        wait_until(lambda: env.status().epoch == epoch + 1, "another epoch")
        env.produce(100, partition=1)
        published(env, env.num)
    assert ranks.ended[0].samples_trained == env.num
    assert env.counts() == expected_counts(env.num)


def test_ranks_begin_where_the_command_line_says_and_their_restarts_do_not(topic, monkeypatch):
    env, before = topic, topic.status()
    begins = [before.positions[name].end if before.positions else 0 for name in ("clicks/0", "clicks/1")]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    start = StartPosition.parse([f"clicks/0={begins[0] + 60}", f"clicks/1={begins[1] + 90}"], None)
    assert on_trainers(env, 2, until_end=True, start=start)[0].samples_trained == before.samples_trained + 50
    assert records(env)[-1].meta.trainer["sought_by"] == launch_name() != ""
    env.produce(30, partition=0)
    assert on_trainers(env, 2, until_end=True, start=start)[0].samples_trained == before.samples_trained + 80
