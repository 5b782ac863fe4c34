"""What one rank waits for, all wait for: the status says what it is, nothing is lost, and nobody is taken for dead."""

import errno
import threading

import pytest

from app.training.ranks.final import FinalError
from app.training.trainer import Trainer
from embeddings.errors import SpillError
from stream.errors import StreamError
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.app.training.trainer_env import expected_counts, records
from tests.support.waiting import DEADLINE_SECONDS, wait_until


@pytest.fixture
def topic(env):
    """A topic of two partitions with 200 clicks each."""
    env.create(partitions=2)
    for partition in range(2):
        env.produce(200, partition=partition)
    return env


def run_beside(env, work) -> tuple[threading.Thread, list]:
    """Run two ranks up to the topic's end, in threads of their own."""
    ended: list = []
    thread = threading.Thread(target=lambda: ended.extend(on_trainers(env, 2, work, until_end=True)), daemon=True)
    thread.start()
    return thread, ended


def test_the_status_says_whose_spill_is_full_and_the_ranks_go_on_agreeing(topic):
    env, has_room = topic, threading.Event()
    passes = [0, 0]

    def run(trainer: Trainer):
        rank, table, agree = trainer.ranks.rank, trainer.state.learner.sharded_table.tables[0], trainer.agree
        lookup = table.lookup

        def refuse(*arguments, **options):
            if rank == 1 and not has_room.is_set():
                raise SpillError("the spill is full")
            return lookup(*arguments, **options)

        def count(**facts):
            passes[rank] += 1
            return agree(**facts)

        table.lookup, trainer.agree = refuse, count
        return trainer.run()

    thread, ended = run_beside(env, run)
    wait_until(lambda: env.status().reason == "rank 1: the spill is full", lambda: env.status().reason)
    assert env.status().trainer == "waiting"
    assert [rank.reason for rank in env.status().ranks] == ["", "the spill is full"]
    before = list(passes)
    wait_until(lambda: all(now > then + 2 for now, then in zip(passes, before, strict=True)), "passes of the loop")
    has_room.set()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == 400
    assert env.counts() == expected_counts(400)


def test_the_slowest_ranks_disk_holds_all_back(topic):
    env, has_room = topic, threading.Event()

    def run(trainer: Trainer):
        segments = trainer.log._queue.segments
        write = segments.write

        def refuse(frame) -> None:
            if not has_room.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            write(frame)

        if trainer.ranks.rank == 1:
            segments.write = refuse
        return trainer.run()

    thread, ended = run_beside(env, run)
    wait_until(lambda: "No space left on device" in env.status().reason, lambda: env.status().reason)
    assert all(record.meta.samples_trained == 0 for record in records(env))
    assert env.status().samples_trained < 400  # of the first version's time: then no rank learns
    has_room.set()
    thread.join(DEADLINE_SECONDS)
    assert ended[0].samples_trained == 400
    assert env.counts() == expected_counts(400)


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
    assert on_trainers(env, 2, until_end=True)[0].samples_trained == 400
