"""Rollbacks on command, on running trainers with a real broker."""

import errno
import threading
from collections import Counter

import pytest

from springtide.app.training.start_position import StartPosition
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.offline import execute_pending
from springtide.app.version_log.commands.queue import command_status, submit_command
from springtide.app.version_log.write.segment_writer import SegmentWriter
from tests.app.training.trainer_env import expected_counts, published, records
from tests.support.waiting import wait_until


def test_a_running_trainer_rolls_back_on_command_and_reads_the_stream_again(env, trainer):
    env.produce(1000)
    running = trainer()
    goal = published(env, 1000)
    env.produce(500)
    published(env, 1500)
    spill = running.state.learner.table.tables[""].spill
    command = submit_command(env.config.log.path, "rollback", {"version": goal})
    wait_until(lambda: command in running.state.executed_commands, "the rollback")
    assert running.state.learner.table.tables[""].spill is not spill
    (back,) = [record for record in records(env) if record.meta.restores]
    assert (back.meta.restores, back.meta.samples_trained) == (goal, 1000)
    assert back.meta.positions["clicks/0"]["offset"] == 1000
    (entry,) = back.meta.executed_commands
    assert entry.result["version"] == goal
    published(env, 1500)
    running.stop()
    wait_until(lambda: env.status().clean_shutdown, "the end")
    assert env.counts() == expected_counts(1500)
    assert env.view().meta.samples_trained == 1500
    assert command_status(env.config.log.path, command).state == "durable"


def test_a_rollback_in_the_last_pass_of_a_run_to_the_end_is_learned_to_the_end_again(env, monkeypatch):
    env.produce(300)
    Trainer(env.config, until_end=True).run()
    goal = records(env)[-1].number
    env.produce(150)
    Trainer(env.config, until_end=True).run()
    trainer = Trainer(env.config, until_end=True)
    batches = type(trainer.session.batches)
    prepare, commands = batches.prepare, []

    def prepare_and_submit(self, **options):
        prepare(self, **options)
        if self.finished and not commands:
            commands.append(submit_command(env.config.log.path, "rollback", {"version": goal}))

    monkeypatch.setattr(batches, "prepare", prepare_and_submit)
    assert trainer.run().samples_trained == 450
    assert len(commands) == 1
    assert sum(bool(record.meta.restores) for record in records(env)) == 1


def test_a_forgotten_id_string_is_published_again_when_its_id_returns(env, trainer):
    env.produce(220)
    trainer()
    published(env, 220)
    path = env.config.log.path
    command = submit_command(path, "forget", {"keys": [{"feature": "item_id", "id": "item 3"}]})
    wait_until(lambda: (command_status(path, command) or ("", "")).state == "durable", "forgetting")
    env.produce(110)
    published(env, 330)
    gone = command_status(path, command).version
    assert b"item 3" in texts_after(env, gone)


def texts_after(env, version: int) -> bytes:
    later = [record.tensors() for record in records(env) if record.number > version]
    return b" ".join(tensors["texts.bytes"].tobytes() for tensors in later if "texts.bytes" in tensors)


def ever_known(env, user: int, after: int) -> list[int]:
    """Return the later versions that hold a row of the user."""
    later = [record for record in records(env) if record.number >= after]
    versions = [(record.number, record.tensors()) for record in later]
    return [
        n for n, t in versions if "rows.id" in t and bool(((t["rows.feature"] == 0) & (t["rows.id"] == user)).any())
    ]


def test_a_forgotten_id_is_filtered_from_records_that_are_read_again(env, trainer):
    env.produce(111)
    running = trainer()
    goal = published(env, 111)
    env.produce(111)
    published(env, 222)
    path = env.config.log.path
    keys = [{"feature": "user_id", "id": 5}, {"feature": "item_id", "id": "item 3"}]
    command = submit_command(path, "forget", {"keys": keys})
    wait_until(lambda: (command_status(path, command) or ("", "")).state == "durable", "forgetting")
    gone = command_status(path, command).version
    back = submit_command(path, "rollback", {"version": goal})
    wait_until(lambda: (command_status(path, back) or ("", "")).state == "durable", "the rollback")
    published(env, 222)
    assert ever_known(env, 5, gone) == []
    assert b"item 3" not in texts_after(env, gone)
    wait_until(lambda: not running.state.changed, "a version")
    assert "erasures" not in records(env)[-1].meta.trainer
    env.produce(37)
    published(env, 259)
    assert env.counts() == expected_counts(259) | {5: 1}
    running.stop()
    wait_until(lambda: env.status().clean_shutdown, "the end")
    # read everything once more: forgotten ids stay filtered up to their erasure
    again = Trainer(env.config, until_end=True, start=StartPosition.parse(["earliest"], None))
    assert again.run().samples_trained == 259 + 259
    assert env.counts()[5] == 2
    assert b"item 3" in texts_after(env, gone)


def test_an_id_forgotten_while_old_records_are_read_again_is_filtered_from_them(env, trainer):
    env.produce(111)
    running = trainer()
    goal = published(env, 111)
    env.produce(333)
    published(env, 444)
    path = env.config.log.path
    back = submit_command(path, "rollback", {"version": goal})
    command = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 6}]})
    wait_until(lambda: (command_status(path, command) or ("", "")).state == "durable", "forgetting")
    published(env, 444)
    assert command_status(path, back).version < command_status(path, command).version
    assert ever_known(env, 6, command_status(path, command).version) == []
    wait_until(lambda: not running.state.changed, "a version")
    assert not {"erasures", "high_water_marks"} & records(env)[-1].meta.trainer.keys()
    running.stop()
    wait_until(lambda: env.status().clean_shutdown, "the end")
    # the same where no trainer runs
    submit_command(path, "rollback", {"version": goal})
    submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 7}]})
    assert execute_pending(env.config.log, window_samples=100) == 2
    assert Trainer(env.config, until_end=True).run().samples_trained == 444
    assert env.counts() == expected_counts(444) | {6: None, 7: None}
    env.produce(37)
    assert Trainer(env.config, until_end=True).run().samples_trained == 481
    assert env.counts() == expected_counts(481) | {6: 1, 7: 1}


def test_commands_after_a_rollback_are_executed_on_the_restored_state(env, trainer):
    env.produce(200)
    trainer()
    goal = published(env, 200)
    path = env.config.log.path
    first = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 5}]})
    wait_until(lambda: (command_status(path, first) or ("", "")).state == "durable", "forgetting")
    back = submit_command(path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: command_status(path, back).state == "durable", "the rollback")
    last = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 6}]})
    wait_until(lambda: command_status(path, last).state == "durable", "forgetting")
    statuses = {user: env.view().row_info(0, user)["status"] for user in (4, 5, 6)}
    assert statuses == {4: "known", 5: "forgotten", 6: "forgotten"}


def test_a_rollback_waits_visibly_for_a_full_disk(env, trainer, monkeypatch):
    env.produce(200)
    running = trainer()
    goal = published(env, 200)
    env.produce(100)
    published(env, 300)
    append, write, full = running.log.append, SegmentWriter.write, threading.Event()

    def append_and_fill(meta, arrays):
        if meta.restores:
            full.set()
        return append(meta, arrays)

    def refuse(self, frame: bytes) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, frame)

    monkeypatch.setattr(running.log, "append", append_and_fill)
    monkeypatch.setattr(SegmentWriter, "write", refuse)
    path = env.config.log.path
    command = submit_command(path, "rollback", {"version": goal})

    def waits_for_disk() -> bool:
        status = env.status()
        return status.trainer == "waiting" and "No space left" in status.reason

    wait_until(waits_for_disk, "the reason")
    full.clear()
    wait_until(lambda: (command_status(path, command) or ("", "")).state == "durable", "the rollback")
    published(env, 300)
    assert env.counts() == expected_counts(300)


@pytest.mark.parametrize(
    ("version", "says"),
    [((1 << 32) + 9_999_999, "is not in the log"), ((9 << 32), "is not in the log"), (7, "not a valid version")],
)
def test_a_rollback_to_an_unknown_version_is_refused_and_learning_continues(env, trainer, version, says):
    env.produce(100)
    running = trainer()
    wait_until(lambda: running.state.samples_trained == 100, "learning")
    command = submit_command(env.config.log.path, "rollback", {"version": version})
    wait_until(lambda: (command_status(env.config.log.path, command) or ("", "")).state == "durable", "the refusal")
    assert says in command_status(env.config.log.path, command).entry.result["refused"]
    env.produce(10)
    wait_until(lambda: running.state.samples_trained == 110, "learning on")


def test_skipped_samples_go_to_the_dead_letters_and_are_not_learned_again(env, trainer):
    env.produce(300)
    running = trainer()
    goal = published(env, 300)
    env.produce(50, bad=2)
    published(env, 350)
    command = submit_command(env.config.log.path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: command in running.state.executed_commands, "the rollback")
    env.produce(30)
    published(env, 330)
    assert running.state.stream.dead_letters == {"bad_json": 2, "gate": 50}
    letters = env.letters()
    assert Counter(letter["reason"] for letter in letters) == {"bad_json": 2, "gate": 50}
    assert sorted(int(letter["offset"]) for letter in letters if letter["reason"] == "gate") == list(range(300, 350))
    expected = Counter(expected_counts(300)) + Counter(number % 37 for number in range(350, 380))
    assert env.counts() == dict(expected)
