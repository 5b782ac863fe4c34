"""A trainer that drops negatives: positions pass them, each is counted once, through restarts, ranks and rollbacks."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.report import evaluate_files
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import submit_command
from springtide.app.version_log.trainer_status import PartitionStatus
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.history.input_file import InputFile
from springtide.stream.negatives import are_kept
from springtide_client.keys import encode_id
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.app.training.trainer_env import TrainerEnv, published, records
from tests.support.config import edit_config
from tests.support.waiting import wait_until

RATE = 0.3
SAMPLED = {"negatives": {"rate": RATE, "by": ["user_id", "item_id"]}, "train": {"batch_size": 1}}


def is_learned(number: int, rate: float = RATE) -> bool:
    """Whether sample `number` of `TrainerEnv.produce` is learned."""
    from springtide.kernels.cpu.hashing import hash_tuples

    if number % 37 % 3 == 0:
        return True
    key = np.array([[number % 37, encode_id(f"item {number % 11}")[0]]])
    return bool(are_kept(hash_tuples(key), rate)[0])


def test_dropped_negatives_are_passed_and_counted_and_a_restart_learns_the_same_bits(env, tmp_path):
    env.configure(SAMPLED)
    env.produce(150)
    first = Trainer(env.config, until_end=True).run()
    env.produce(150, bad=1)
    status = Trainer(env.config, until_end=True).run()
    expected = Counter(number % 37 for number in range(300) if is_learned(number))
    assert status.samples_trained == sum(expected.values()) < 250
    assert 0 < first.dropped_negatives < status.dropped_negatives == 300 - status.samples_trained
    assert status.positions == {"clicks/0": PartitionStatus(301, 301, 301, 0)}
    assert env.status().dropped_negatives == status.dropped_negatives
    assert {user: count for user, count in env.counts().items() if count} == expected

    with EmbeddedBroker(tmp_path / "other" / "log") as broker:
        other = TrainerEnv(tmp_path / "other", broker)
        other.configure(SAMPLED)
        other.produce(300)
        Trainer(other.config, until_end=True).run()
        view, wanted = env.view(), other.view()
        for user in range(37):
            np.testing.assert_equal(view.row_info(0, user), wanted.row_info(0, user))


def test_a_rate_may_change_between_two_starts(env):
    env.configure(SAMPLED)
    env.produce(100)
    first = Trainer(env.config, until_end=True).run()
    env.configure({"negatives": {"rate": 0.9}})
    env.produce(100)
    second = Trainer(env.config, until_end=True).run()
    assert second.samples_trained == first.samples_trained + sum(is_learned(number, 0.9) for number in range(100, 200))
    env.configure({"negatives": None})
    env.produce(50)
    assert Trainer(env.config, until_end=True).run().samples_trained == second.samples_trained + 50


def test_ranks_drop_the_same_and_all_know_how_many(env):
    env.configure(SAMPLED, {"train": {"batch_size": 64}})
    env.create(partitions=2)
    env.produce(200, partition=0)
    env.produce(200, partition=1)
    first, _ = on_trainers(env, 2, until_end=True)
    num_learned = sum(is_learned(number) for number in range(400))
    assert first.samples_trained == num_learned
    assert first.dropped_negatives == 400 - num_learned
    assert env.status().dropped_negatives == 400 - num_learned


def test_a_rollback_skips_what_was_learned_and_no_dropped_negative(env, trainer):
    env.configure(SAMPLED, {"train": {"batch_size": 64}})
    env.produce(100)
    running = trainer()
    before = sum(is_learned(number) for number in range(100))
    goal = published(env, before)
    env.produce(100)
    skipped = [number for number in range(100, 200) if is_learned(number)]
    published(env, before + len(skipped))
    command = submit_command(env.config.log.path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: command in running.state.executed_commands, "the rollback")
    wait_until(lambda: len(env.letters()) >= len(skipped), "the dead letters")
    assert sorted(int(letter["offset"]) for letter in env.letters()) == skipped
    assert running.state.stream.num_dropped == 200 - before - len(skipped)
    assert records(env)[-1].meta.dead_letters == {"gate": len(skipped)}


def test_evaluate_drops_them_too_and_scores_as_if_it_had_not(tmp_path):
    draw = np.random.default_rng(5)
    path = tmp_path / "clicks.jsonl"
    config = edit_config_in(tmp_path)
    with path.open("w") as file:
        for number in range(20_000):
            user, item = int(draw.integers(0, 40)), int(draw.integers(0, 15))
            logit = np.sin(3 * user) + np.cos(2 * item) - 2
            click = int(draw.random() < 1 / (1 + np.exp(-logit)))
            row = {"user_id": user, "item_id": item, "request": number, "age": None, "click": click}
            file.write(json.dumps(row | {"ts": 1_700_000_000_000 + number}) + "\n")
    full = evaluate_files([InputFile(path)], config)
    edit_config(config, {"negatives": {"rate": 0.2, "by": ["request"]}})
    found = evaluate_files([InputFile(path)], config)
    assert found.dropped_negatives + found.samples == full.samples == 20_000
    assert found.dropped_negatives > 12_000
    assert found.first.calibration == pytest.approx(full.first.calibration, abs=0.03)
    assert found.first.logloss == pytest.approx(full.first.logloss, abs=0.01)
    assert found.first.auc == pytest.approx(full.first.auc, abs=0.02)  # less is learned
    assert len(found.scored.row_N) == found.samples


def edit_config_in(folder: Path) -> Path:
    from tests.app.training.trainer_env import SETTINGS
    from tests.support.config import config_in

    return config_in(folder, SETTINGS, {"train": {"batch_size": 256}}).path


def test_losses_that_rank_a_group_need_it_whole(env):
    settings = {"labels": {"click": {"loss": "pairwise", "group": "user_id"}}, **SAMPLED}
    with pytest.raises(UserError, match=r'only with label = "click", by = \["user_id"\]'):
        env.configure(settings)
    env.configure({"negatives": {"by": ["user_id"]}})
    with pytest.raises(UserError, match="are groups kept whole"):
        env.configure({"negatives": {"method": "weights"}})
    assert load_config(edit_config(env.path, {"negatives": {"method": "offset"}})).negatives.by == ("user_id",)
