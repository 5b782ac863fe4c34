"""Orders that go back, on running trainers with a real broker."""

import errno
import threading
from collections import Counter

import pytest
from trainer_room import expected_counts, published, records, wait_until

from app.training.input.start_position import StartPosition
from app.training.trainer import Trainer
from app.version_log.commands.offline import execute_pending
from app.version_log.commands.queue import submit_command
from app.version_log.commands.status import command_status
from app.version_log.trainer_status import read_status
from app.version_log.write.segments import SegmentWriter


def test_a_running_trainer_goes_back_by_order_and_learns_the_stream_again(room, trainer):
    room.produce(1000)
    running = trainer()
    goal = published(room, 1000)
    room.produce(500)
    published(room, 1500)
    spill = running.state.learner.table.spill
    order = submit_command(room.config.log.path, "rollback", {"version": goal})
    wait_until(lambda: order in running.state.executed_commands, "the rollback")
    assert running.state.learner.table.spill is not spill
    (back,) = [record for record in records(room) if record.meta.restores]
    assert (back.meta.restores, back.meta.samples_trained) == (goal, 1000)
    assert back.meta.positions["clicks/0"]["offset"] == 1000
    (entry,) = back.meta.executed_commands
    assert entry["result"]["version"] == goal
    published(room, 1500)
    running.stop()
    wait_until(lambda: (read_status(room.config.log.path) or {}).get("clean_end"), "the end")
    assert room.counts() == expected_counts(1500)
    assert room.view().meta.samples_trained == 1500
    assert command_status(room.config.log.path, order).state == "durable"


def test_a_text_that_was_forgotten_is_told_again_when_its_id_returns(room, trainer):
    room.produce(220)
    trainer()
    published(room, 220)
    path = room.config.log.path
    order = submit_command(path, "forget", {"keys": [{"feature": "item_id", "id": "item 3"}]})
    wait_until(lambda: (command_status(path, order) or ("", "")).state == "durable", "forgetting")
    room.produce(110)
    published(room, 330)
    gone = command_status(path, order).version
    assert b"item 3" in texts_after(room, gone)


def texts_after(room, version: int) -> bytes:
    later = [record.tensors() for record in records(room) if record.number > version]
    return b" ".join(tensors["texts.bytes"].tobytes() for tensors in later if "texts.bytes" in tensors)


def ever_known(room, user: int, after: int) -> list[int]:
    """The versions after one that tell a row of the user."""
    later = [record for record in records(room) if record.number >= after]
    told = [(record.number, record.tensors()) for record in later]
    return [n for n, t in told if "rows.id" in t and bool(((t["rows.feature"] == 0) & (t["rows.id"] == user)).any())]


def test_a_forgotten_id_does_not_come_back_from_records_that_are_read_again(room, trainer):
    room.produce(111)
    running = trainer()
    goal = published(room, 111)
    room.produce(111)
    published(room, 222)
    path = room.config.log.path
    keys = [{"feature": "user_id", "id": 5}, {"feature": "item_id", "id": "item 3"}]
    order = submit_command(path, "forget", {"keys": keys})
    wait_until(lambda: (command_status(path, order) or ("", "")).state == "durable", "forgetting")
    gone = command_status(path, order).version
    back = submit_command(path, "rollback", {"version": goal})
    wait_until(lambda: (command_status(path, back) or ("", "")).state == "durable", "the rollback")
    published(room, 222)
    assert ever_known(room, 5, gone) == []
    assert b"item 3" not in texts_after(room, gone)
    wait_until(lambda: not running.state.changed, "a version")
    assert "hidden" not in records(room)[-1].meta.trainer
    room.produce(37)
    published(room, 259)
    assert room.counts() == expected_counts(259) | {5: 1}
    running.stop()
    wait_until(lambda: (read_status(path) or {}).get("clean_end"), "the end")
    # somebody reads it all once more: what is forgotten stays hidden up to where it was
    again = Trainer(room.config, until_end=True, start=StartPosition.parse(["earliest"], None))
    assert again.run()["samples_trained"] == 259 + 259
    assert room.counts()[5] == 2
    assert b"item 3" in texts_after(room, gone)


def test_who_is_forgotten_while_old_records_are_read_again_does_not_come_back_from_them(room, trainer):
    room.produce(111)
    running = trainer()
    goal = published(room, 111)
    room.produce(333)
    published(room, 444)
    path = room.config.log.path
    back = submit_command(path, "rollback", {"version": goal})
    order = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 6}]})
    wait_until(lambda: (command_status(path, order) or ("", "")).state == "durable", "forgetting")
    published(room, 444)
    assert command_status(path, back).version < command_status(path, order).version
    assert ever_known(room, 6, command_status(path, order).version) == []
    wait_until(lambda: not running.state.changed, "a version")
    assert not {"hidden", "furthest"} & records(room)[-1].meta.trainer.keys()
    running.stop()
    wait_until(lambda: (read_status(path) or {}).get("clean_end"), "the end")
    # the same where no trainer runs
    submit_command(path, "rollback", {"version": goal})
    submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 7}]})
    assert execute_pending(room.config.log, room.config.schema, window_samples=100) == 2
    assert Trainer(room.config, until_end=True).run()["samples_trained"] == 444
    assert room.counts() == expected_counts(444) | {6: None, 7: None}
    room.produce(37)
    assert Trainer(room.config, until_end=True).run()["samples_trained"] == 481
    assert room.counts() == expected_counts(481) | {6: 1, 7: 1}


def test_orders_after_a_rollback_are_executed_on_what_it_restored(room, trainer):
    room.produce(200)
    trainer()
    goal = published(room, 200)
    path = room.config.log.path
    first = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 5}]})
    wait_until(lambda: (command_status(path, first) or ("", "")).state == "durable", "forgetting")
    back = submit_command(path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: command_status(path, back).state == "durable", "the rollback")
    last = submit_command(path, "forget", {"keys": [{"feature": "user_id", "id": 6}]})
    wait_until(lambda: command_status(path, last).state == "durable", "forgetting")
    statuses = {user: room.view().row_info(0, user)["status"] for user in (4, 5, 6)}
    assert statuses == {4: "known", 5: "forgotten", 6: "forgotten"}


def test_a_full_disk_amid_going_back_is_waited_for_and_told(room, trainer, monkeypatch):
    room.produce(200)
    running = trainer()
    goal = published(room, 200)
    room.produce(100)
    published(room, 300)
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
    path = room.config.log.path
    order = submit_command(path, "rollback", {"version": goal})

    def told() -> bool:
        status = read_status(path) or {}
        return status["trainer"] == "waiting" and "No space left" in status["reason"]

    wait_until(told, "the reason")
    full.clear()
    wait_until(lambda: (command_status(path, order) or ("", "")).state == "durable", "the rollback")
    published(room, 300)
    assert room.counts() == expected_counts(300)


@pytest.mark.parametrize(
    ("version", "says"),
    [((1 << 32) + 9_999_999, "is not in the log"), ((9 << 32), "is not in the log"), (7, "no version")],
)
def test_a_version_that_is_not_there_is_refused_and_learning_goes_on(room, trainer, version, says):
    room.produce(100)
    running = trainer()
    wait_until(lambda: running.state.samples_trained == 100, "learning")
    order = submit_command(room.config.log.path, "rollback", {"version": version})
    wait_until(lambda: (command_status(room.config.log.path, order) or ("", "")).state == "durable", "the refusal")
    assert says in command_status(room.config.log.path, order).entry["result"]["refused"]
    room.produce(10)
    wait_until(lambda: running.state.samples_trained == 110, "learning on")


def test_what_is_skipped_goes_to_the_dead_letters_and_is_not_learned_again(room, trainer):
    room.produce(300)
    running = trainer()
    goal = published(room, 300)
    room.produce(50, bad=2)
    published(room, 350)
    order = submit_command(room.config.log.path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: order in running.state.executed_commands, "the rollback")
    room.produce(30)
    published(room, 330)
    assert running.state.dead_letters == {"bad_json": 2, "gate": 50}
    letters = room.letters()
    assert Counter(letter["reason"] for letter in letters) == {"bad_json": 2, "gate": 50}
    assert sorted(int(letter["offset"]) for letter in letters if letter["reason"] == "gate") == list(range(300, 350))
    expected = Counter(expected_counts(300)) + Counter(number % 37 for number in range(350, 380))
    assert room.counts() == dict(expected)
