"""A trainer of several ranks learns what one learns: each click once, whatever the number of ranks was before.

The ranks are threads here; `test_processes.py` has processes.
"""

import pytest
import torch

from springtide.app.training.rollback import ModelHeldError
from springtide.app.training.step.learner import KeyCounts
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import command_status, submit_command
from springtide.app.version_log.trainer_status import PartitionStatus
from springtide.stream.positions import Partition
from tests.app.training.ranks.thread_trainers import on_trainers, running_ranks
from tests.app.training.trainer_env import expected_counts, published, records
from tests.support.waiting import wait_until


@pytest.fixture
def topic(env):
    """A topic of three partitions."""
    env.create(partitions=3)
    return env


def test_clicks_are_learned_once_by_two_ranks_then_one_then_two(topic):
    env = topic
    env.configure({"scores": {"group": "user_id"}, "schema": {"request": "item_id"}, "train": {"by_request": True}})
    for partition in range(3):
        env.produce(200, partition=partition, bad=partition)
    first, _ = on_trainers(env, 2, until_end=True)
    assert first.samples_trained == 600
    assert first.dead_letters == {"bad_json": 3}
    assert first.positions == {
        f"clicks/{number}": PartitionStatus(200 + number, 200 + number, 200 + number, 0) for number in range(3)
    }
    assert [(rank.partitions, rank.lag) for rank in first.ranks] == [(2, 0), (1, 0)]
    assert sum(rank.rows["device"] for rank in first.ranks) == first.table.rows["device"] > 40
    assert first.scores.whole.auc is not None
    assert env.status().pid == first.pid
    assert env.counts() == expected_counts(600)
    last = records(env)[-1].meta
    assert set(last.positions) == set(last.trainer["watermarks"]) == {"clicks/0", "clicks/1", "clicks/2"}

    env.produce(100, partition=1)
    alone = Trainer(env.config, until_end=True).run()
    assert (alone.samples_trained, alone.ranks) == (700, [])
    assert env.counts() == expected_counts(700)
    env.produce(100, partition=2)
    env.produce(100, partition=0)
    again, _ = on_trainers(env, 2, until_end=True)
    assert again.samples_trained == 900
    assert again.epoch == alone.epoch + 1
    assert again.scores.ranking["group"].whole.samples == 900
    assert env.counts() == expected_counts(900)


def test_every_rank_has_the_same_net_scores_and_clock(topic):
    env = topic
    env.configure({"scores": {"group": "user_id"}})
    for partition in range(3):
        env.produce(150, partition=partition)

    def run(trainer: Trainer):
        trainer.run()
        state = trainer.state
        net = {name: tensor.clone() for name, tensor in state.learner.dense_tensors().items()}
        return net, state.detailed_scores(), state.stream.clock.now_ms, state.stream.positions, state.loss

    (net, *rest), (other_net, *other_rest) = on_trainers(env, 2, run, until_end=True)
    assert all(torch.equal(net[name], other_net[name]) for name in net)
    assert rest == other_rest
    assert Partition("clicks", 2) in rest[2]


def test_orders_reach_all_ranks_and_a_rank_without_partitions_takes_part(env):
    env.produce(370)
    path = env.config.log.path
    with running_ranks(env, 2) as ranks:
        goal = published(env, 370)
        keys = [{"feature": "user_id", "id": user} for user in range(10)]
        forget = submit_command(path, "forget", {"keys": keys})
        limits = submit_command(path, "limits", {"limits": {"lr": 0.5}})
        wait_until(lambda: (command_status(path, forget) or ("", "")).state == "durable", "forgetting")
        wait_until(lambda: (command_status(path, limits) or ("", "")).state == "durable", "the limits")
        assert [trainer.state.learner.table.lr for trainer in ranks.trainers.values()] == [0.5, 0.5]
        assert {env.view().row_info(0, user)["status"] for user in range(10)} == {"forgotten"}
        env.produce(37)
        published(env, 407)
        back = submit_command(path, "rollback", {"version": goal})
        wait_until(lambda: (command_status(path, back) or ("", "")).state == "durable", "the rollback")
        published(env, 407)
        wait_until(lambda: len(env.status().ranks) == 2, "the ranks' status")
        assert [rank.partitions for rank in env.status().ranks] == [1, 0]
    assert ranks.ended[0].samples_trained == 407
    # what was forgotten was learned before, and is not learned again from records before the order
    counts = {user: count - 10 * (user < 10) for user, count in expected_counts(407).items()}
    assert env.counts() == counts


def break_at(trainer: Trainer, samples: int) -> None:
    """Harm the net of every rank with the first batch after so many samples, once."""
    learn, done = trainer.learn, []

    def learn_and_harm(batch) -> None:
        learn(batch)
        if trainer.state.samples_trained > samples and not done:
            done.append(True)
            with torch.no_grad():
                next(trainer.state.learner.model.parameters()).fill_(float("nan"))

    trainer.learn = learn_and_harm


def test_the_gate_holds_all_ranks_back_or_rolls_all_back(topic):
    env = topic
    for partition in range(3):
        env.produce(100, partition=partition)

    def run_held(trainer: Trainer):
        break_at(trainer, 100)
        with pytest.raises(ModelHeldError, match="health gate"):
            trainer.run()
        return trainer.gate.held

    first, second = on_trainers(env, 2, run_held, until_end=True)
    assert first == second
    assert first.reason == "not_finite"
    assert all(record.meta.samples_trained <= 100 for record in records(env))

    def run(trainer: Trainer):
        break_at(trainer, 100)
        return trainer.run()

    env.configure('[gate]\naction = "rollback"\n')
    status, _ = on_trainers(env, 2, run, until_end=True)
    assert status.gate.rollbacks == 1
    assert status.samples_trained + status.dead_letters["gate"] == 300
    assert {name: at.learned for name, at in status.positions.items()} == {f"clicks/{n}": 100 for n in range(3)}


def test_a_stop_that_ends_the_wait_for_a_checkpoint_leaves_the_batch_to_the_next_start(topic):
    env = topic
    for partition in range(3):
        env.produce(200, partition=partition)

    def run(trainer: Trainer):
        learner, publish, waits = trainer.state.learner, trainer.publish, []
        count = learner.count_keys

        def count_keys(batch) -> KeyCounts:
            counts = count(batch)
            is_first = not waits and trainer.state.samples_trained >= 100
            waits.extend([True] * is_first)
            return counts._replace(max_keys_T=tuple(num - is_first for num in counts.num_keys_T))

        def refuse() -> bool:
            if not waits:
                return publish()
            if not trainer.ranks.is_first:
                trainer.stop()
            return False

        learner.count_keys, trainer.publish = count_keys, refuse
        return trainer.run()

    stopped, _ = on_trainers(env, 2, run)
    assert 100 <= stopped.samples_trained < 600
    status, _ = on_trainers(env, 2, until_end=True)
    assert status.samples_trained == 600
    assert env.counts() == expected_counts(600)


def test_an_erasure_waits_for_room_in_the_spill_of_every_rank_if_need_be_until_the_next_start(env):
    env.produce(370)
    on_trainers(env, 2, until_end=True)
    path = env.config.log.path
    keys = [{"feature": "user_id", "id": user} for user in range(10)]
    forget = submit_command(path, "forget", {"keys": keys})

    def run(trainer: Trainer):
        def refuse(*_) -> bool:
            trainer.stop()
            return False

        if not trainer.ranks.is_first:
            trainer.state.learner.table.has_room = refuse
        return trainer.run()

    on_trainers(env, 2, run)
    assert command_status(path, forget).state == "claimed"  # not executed
    with running_ranks(env, 2):
        wait_until(lambda: command_status(path, forget).state == "durable", "forgetting")
    assert {env.view().row_info(0, user)["status"] for user in range(10)} == {"forgotten"}
