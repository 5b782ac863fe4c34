"""What the health gate does with an unhealthy model; on running trainers with a real broker."""

import json
from collections import Counter

import pytest
import torch

from springtide.app.training.publisher import PublishSchedule
from springtide.app.training.rollback import ModelHeldError
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import command_status, submit_command
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.trainer_status import PartitionStatus
from springtide_client.format.records import version_name
from springtide_client.log.directory import LogDirectory
from tests.app.training.trainer_env import expected_counts, published, records, run_in_thread
from tests.support.waiting import wait_until


def break_at(trainer: Trainer, samples: int, harm) -> None:
    """Do harm to the net with the first batch after so many samples, once."""
    learn, done = Trainer.learn, []

    def learn_and_harm(batch) -> None:
        learn(trainer, batch)
        if trainer.state.samples_trained > samples and not done:
            done.append(True)
            with torch.no_grad():
                harm(next(trainer.state.learner.model.parameters()))

    trainer.learn = learn_and_harm


HARMS = {
    "not_finite": lambda parameter: parameter.fill_(float("nan")),
    "norm": lambda parameter: parameter.mul_(1e6),
}


@pytest.mark.parametrize("reason", HARMS)
def test_an_unhealthy_model_is_held_back_until_a_command(env, reason):
    env.produce(600)
    trainer = Trainer(env.config)
    break_at(trainer, 300, HARMS[reason])
    thread, ended = run_in_thread(trainer)
    path = env.config.log.path
    wait_until(lambda: env.status().gate.state == "holding", "the gate")
    status = env.status()
    assert status.trainer == "waiting"
    assert "health gate" in status.reason
    assert "--skip" in status.reason
    assert (status.gate.reason, status.gate.trips) == (reason, 1)
    learned, version = trainer.state.samples_trained, trainer.log.last_encoded.number
    assert records(env)[-1].meta.samples_trained <= 300 < learned
    # a command finds the newest good version; what was held is learned again, this time without harm
    command = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 36}]})
    published(env, 600)
    assert command_status(path, command).version > version
    trainer.stop()
    thread.join(300)
    (status,) = ended
    assert (status.gate.state, status.gate.reason) == ("open", reason)
    assert status.samples_trained == 600


def test_a_stop_while_the_gate_holds_publishes_nothing(env):
    env.produce(600)
    trainer = Trainer(env.config)
    break_at(trainer, 300, HARMS["not_finite"])
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: trainer.gate.held, "the gate")
    trainer.stop()
    thread.join(300)
    (status,) = ended
    assert "gate" in status.reason
    assert records(env)[-1].meta.samples_trained <= 300
    assert Trainer(env.config, until_end=True).run().samples_trained == 600
    assert env.counts() == expected_counts(600)


def test_until_end_fails_if_the_gate_holds(env):
    env.produce(600)
    trainer = Trainer(env.config, until_end=True)
    break_at(trainer, 300, HARMS["not_finite"])
    with pytest.raises(ModelHeldError, match="not finite"):
        trainer.run()
    assert env.status().trainer == "failed"


@pytest.mark.parametrize("reason", HARMS)
def test_the_gate_rolls_back_automatically_and_skips_the_samples(env, reason):
    env.configure('[gate]\naction = "rollback"\n')
    env.produce(640)
    trainer = Trainer(env.config, until_end=True)
    break_at(trainer, 300, HARMS[reason])
    status = trainer.run()
    skipped = status.dead_letters["gate"]
    assert 0 < skipped < 640
    assert status.samples_trained == 640 - skipped
    assert status.positions["clicks/0"] == PartitionStatus(640, 640, 640, 0)
    assert (status.gate.trips, status.gate.rollbacks) == (1, 1)
    letters = env.letters()
    assert {letter["reason"] for letter in letters} == {"gate"}
    assert len(letters) == skipped
    users = Counter(json.loads(letter["value"])["user_id"] for letter in letters)
    assert Counter(env.counts()) + users == Counter(expected_counts(640))
    (back,) = [record for record in records(env) if record.meta.restores]
    gate = back.meta.trainer["gate"]
    assert (gate["reason"], gate["skipped"]) == (reason, skipped)
    # a restart continues after it
    env.produce(60)
    assert Trainer(env.config, until_end=True).run().samples_trained == 700 - skipped


def test_a_logloss_rise_is_rolled_back_to_before_it_began(env):
    env.configure('[gate]\naction = "rollback"\nlogloss_samples = 400\n[train]\nwindow_samples = 2000\n')
    env.produce(4000)
    good = Trainer(env.config, until_end=True).run()
    env.produce(600, label=lambda number: 1 - int(number % 37 % 3 == 0))  # the world upside down
    env.produce(1000)
    status = Trainer(env.config, until_end=True).run()
    assert status.gate.rollbacks >= 1
    assert status.gate.reason == "logloss"
    skipped = status.dead_letters["gate"]
    assert status.samples_trained == 5600 - skipped
    assert good.scores.window.logloss < 0.5
    offsets = [int(letter["offset"]) for letter in env.letters()]
    assert min(offsets) <= 4000  # back to a version from before the collapse
    assert any(4000 <= offset < 4600 for offset in offsets)
    assert version_name(records(env)[-1].number).startswith("2.")


def test_a_restarted_trainer_rolls_back_to_before_the_rise_began(env):
    env.configure('[gate]\naction = "rollback"\nlogloss_samples = 400\n[train]\nwindow_samples = 2000\n')
    env.produce(1500)
    Trainer(env.config, until_end=True).run()
    env.produce(8, label=lambda number: 1 - int(number % 37 % 3 == 0))
    assert Trainer(env.config, until_end=True).run().gate.trips == 0
    env.produce(300, label=lambda number: 1 - int(number % 37 % 3 == 0))
    status = Trainer(env.config, until_end=True).run()
    assert status.gate.rollbacks >= 1
    back = next(record for record in records(env) if record.meta.restores)
    assert back.meta.samples_trained <= 1500


def test_if_the_good_versions_base_is_deleted_the_oldest_restorable_one_is_restored(env):
    env.configure('[gate]\naction = "rollback"\n')
    env.produce(320)
    Trainer(env.config, until_end=True).run()
    env.produce(320)
    trainer = Trainer(env.config, until_end=True)
    break_at(trainer, 320 + 128, HARMS["norm"])
    judge = trainer.gate.judge

    def judge_late(*arguments):
        if judge(*arguments) is not None and trainer.gate.held.good != 1:
            assert trainer.wait_until_durable()
            assert compact_log(trainer.log.directory, window_samples=100)
            apply_retention(trainer.log.directory, 1)
            trainer.gate.held = trainer.gate.held._replace(good=1)  # of which nothing is left
        return trainer.gate.held

    trainer.gate.judge = judge_late
    status = trainer.run()
    assert status.gate.rollbacks == 1
    (back,) = [record for record in records(env) if record.meta.restores]
    assert [back.meta.restores] == LogDirectory(env.config.log.path).scan().bases


def test_too_many_samples_skipped_in_a_row_disable_automatic_rollback(env, monkeypatch):
    monkeypatch.setattr(PublishSchedule, "interval_seconds", lambda self, *, is_behind: 0.0)  # a version a batch
    env.configure('[gate]\naction = "rollback"\nmax_skipped = 300\n')
    env.produce(1000)
    trainer = Trainer(env.config, until_end=True)
    learn = Trainer.learn

    def learn_and_harm(batch) -> None:
        learn(trainer, batch)
        with torch.no_grad():
            next(trainer.state.learner.model.parameters()).fill_(float("nan"))

    trainer.learn = learn_and_harm
    with pytest.raises(ModelHeldError):
        trainer.run()
    assert trainer.state.gate.rollbacks > 1
    assert 150 < trainer.state.gate.skipped_in_a_row == trainer.state.stream.dead_letters["gate"] <= 300
