"""Ranks that are started again after a kill go on bit by bit, if their batches are the same."""

import pytest

from springtide.app.training.trainer import Trainer
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.app.training.state.test_training_state import assert_same, snapshot
from tests.app.training.trainer_env import records
from tests.support.waiting import wait_until


class KilledError(Exception):
    """Stands for SIGKILL: nothing more is published."""


def learned(trainer: Trainer):
    """Run to the end; return everything that the rank has learned."""
    release, found = trainer._release, []

    def take_and_release() -> None:
        found.append(snapshot(trainer.state))
        release()

    trainer._release = take_and_release
    trainer.run()
    del found[0]["state.random"]  # torch's generator is one for all threads, which the ranks are here
    return found[0]


def run_and_die(trainer: Trainer) -> None:
    """Learn five batches, publish with the exact state of the net, learn three more, and die."""
    learn, batches = trainer.learn, []

    def learn_some(batch) -> None:
        learn(batch)
        batches.append(batch)
        if len(batches) == 5:
            trainer.publisher.publish(trainer.session, exact=True)
            wait_until(lambda: trainer.log.durable.number == trainer.log.last_number, "a durable version")
        if len(batches) == 8 and trainer.ranks.is_first:
            raise KilledError

    trainer.learn = learn_some
    trainer.run()


def test_killed_ranks_go_on_bit_by_bit_with_the_exact_state_of_the_net_beside_the_log(env, tmp_path):
    env.create(partitions=2)
    env.produce(500, partition=0)
    env.produce(300, partition=1)
    text = env.path.read_text().replace("max_wait_seconds = 0.05", "max_wait_seconds = inf")
    text = text.replace("[log]", "[log]\nexact_bytes = 0").replace("batch_size = 64", "batch_size = 32")
    text += f'[source]\nbootstrap_servers = "{env.broker.address}"\n'
    env.path.write_text(text)
    env.configure("")
    whole = on_trainers(env, 2, learned, until_end=True)

    env.path.write_text(text.replace(f'path = "{tmp_path}/log"', f'path = "{tmp_path}/other"'))
    env.configure("")
    with pytest.raises(KilledError):
        on_trainers(env, 2, run_and_die, until_end=True)
    assert 0 < records(env)[-1].meta.samples_trained < 800
    for one, other in zip(whole, on_trainers(env, 2, learned, until_end=True), strict=True):
        assert_same(one, other)
