"""Corruption in the log of a running trainer: it starts an epoch before it, and followers can follow again."""

from collections import Counter

import pytest

from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import command_status, submit_command
from springtide.app.version_log.compact.compactor import Compactor
from springtide.app.version_log.read.corruption import (
    REPORT_NAME,
    find_corruption,
    report_corruption,
    take_corruption_report,
)
from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from tests.app.training.trainer_env import run_in_thread
from tests.support.waiting import wait_until


def learned(env, trainer: Trainer, samples: int) -> None:
    wait_until(lambda: trainer.state.samples_trained == samples and not trainer.state.changed, f"{samples} samples")


def flip_in_second_record(env) -> None:
    """A bit in the middle of the payload of the second version that has rows."""
    (path,) = env.config.log.path.glob("seg-*")
    frame = [frame for frame in sound_frames(path) if frame.header.length > 2000][1]
    place = frame.end - frame.header.length // 2
    with path.open("r+b") as file:
        file.seek(place)
        bits = file.read(1)[0]
        file.seek(place)
        file.write(bytes([bits ^ 1]))


def test_corruption_ahead_of_the_newest_base_is_repaired_while_the_trainer_runs(env):
    env.produce(200)
    trainer = Trainer(env.config)
    thread, ended = run_in_thread(trainer)
    learned(env, trainer, 200)
    follower = Follower(LogDirectory(env.config.log.path))
    follower.poll()
    path = env.config.log.path
    command = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 5}]})
    wait_until(lambda: (command_status(path, command) or ("", "")).state == "durable", "forgetting")
    lowered = submit_command(path, "limits", {"limits": {"lr": 0.01}})
    wait_until(lambda: (command_status(path, lowered) or ("", "")).state == "durable", "the limit")
    env.produce(100)
    learned(env, trainer, 300)
    trainer.log.sync()
    flip_in_second_record(env)
    compactor = Compactor(env.config.log)
    compactor.compact()
    wait_until(lambda: trainer.log.epoch == 2, "another epoch")
    learned(env, trainer, 300)
    wait_until(lambda: (follower.poll(), follower.view.meta.samples_trained == 300)[1], "the follower")
    assert follower.error is None
    assert follower.view.version == trainer.log.last_encoded.number or follower.view.version >> 32 == 2
    # what the lost versions said of commands is said again, and done again
    assert command_status(path, command).version >> 32 == command_status(path, lowered).version >> 32 == 2
    env.produce(37)
    learned(env, trainer, 337)
    trainer.stop()
    thread.join(300)
    (status,) = ended
    assert status.table.limits["lr"][0] == 0.01
    assert find_corruption(LogDirectory(path), trainer.log.last_encoded) == ""
    expected = Counter(number % 37 for number in range(337))
    assert env.counts() == expected | {5: sum(number % 37 == 5 for number in range(200, 337))}
    compactor.compact()
    assert not (path / REPORT_NAME).exists()
    again = Trainer(env.config, until_end=True)
    assert again.session.commands.has_pending is False
    assert not again.state.changed
    again.run()
    follower.close()


def test_a_wrong_corruption_report_changes_nothing(env):
    env.produce(100)
    trainer = Trainer(env.config)
    thread, _ = run_in_thread(trainer)
    learned(env, trainer, 100)
    report_corruption(LogDirectory(env.config.log.path), "a wrong report")
    wait_until(lambda: not (env.config.log.path / REPORT_NAME).exists(), "a look")
    env.produce(100)
    learned(env, trainer, 200)
    assert trainer.log.epoch == 1
    trainer.stop()
    thread.join(300)


@pytest.mark.parametrize("text", [b"", b"{", b"5"])
def test_an_unreadable_corruption_report_is_verified_and_one_of_another_epoch_is_not(tmp_path, text):
    (tmp_path / REPORT_NAME).write_bytes(text)
    assert "cannot be read" in take_corruption_report(tmp_path, 3)
    (tmp_path / REPORT_NAME).write_bytes(b'{"epoch": 2, "reason": "old"}')
    assert take_corruption_report(tmp_path, 3) == ""
    assert not list(tmp_path.iterdir())
