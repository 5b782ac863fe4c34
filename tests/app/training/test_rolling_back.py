"""Orders that go back, the health gate, and starts elsewhere: on running trainers with a real broker."""

import errno
import json
import threading
from collections import Counter

import pytest
import torch
from springtide_client.log_directory import LogDirectory
from springtide_client.records import version_name
from trainer_room import run_in_thread, wait_until

from app.errors import UserError
from app.serving.orders import put_order
from app.training.rolling_back import HeldError
from app.training.start_elsewhere import StartElsewhere
from app.training.trainer import Trainer
from app.versions.base_merge import merge_base
from app.versions.clerk import execute_waiting
from app.versions.receipts import receipt_of
from app.versions.retire import retire
from app.versions.segments import SegmentFiles
from app.versions.status import read_status
from stream.columns import Partition


def records(room):
    return list(LogDirectory(room.config.log.path).records(None))


def published(room, samples: int) -> int:
    """The newest version, once it is one of so many samples."""
    wait_until(lambda: (found := records(room)) and found[-1].meta.samples_trained == samples, f"{samples} samples")
    return records(room)[-1].number


def expected_counts(num: int) -> dict[int, int]:
    return dict(Counter(number % 37 for number in range(num)))


@pytest.fixture
def trainer(room):
    """A trainer that runs beside the test."""
    running = []

    def start(**options) -> Trainer:
        trainer = Trainer(room.config, **options)
        running.append((trainer, *run_in_thread(trainer)))
        return trainer

    yield start
    for trainer, thread, _ in running:
        trainer.stop()
        thread.join(30)


def test_a_running_trainer_goes_back_by_order_and_learns_the_stream_again(room, trainer):
    room.produce(1000)
    running = trainer()
    goal = published(room, 1000)
    room.produce(500)
    published(room, 1500)
    spill = running.state.learner.table.spill
    order = put_order(room.config.log.path, "rollback", {"version": goal})
    wait_until(lambda: order in running.state.executed_orders, "the rollback")
    assert running.state.learner.table.spill is not spill
    (back,) = [record for record in records(room) if record.meta.restores]
    assert (back.meta.restores, back.meta.samples_trained) == (goal, 1000)
    assert back.meta.positions["clicks/0"]["offset"] == 1000
    (entry,) = back.meta.orders
    assert entry["result"]["version"] == goal
    published(room, 1500)
    running.stop()
    wait_until(lambda: (read_status(room.config.log.path) or {}).get("clean_end"), "the end")
    assert room.counts() == expected_counts(1500)
    assert room.view().meta.samples_trained == 1500
    assert receipt_of(room.config.log.path, order).state == "durable"


def test_a_text_that_was_forgotten_is_told_again_when_its_id_returns(room, trainer):
    room.produce(220)
    trainer()
    published(room, 220)
    path = room.config.log.path
    order = put_order(path, "forget", {"keys": [{"feature": "item_id", "id": "item 3"}]})
    wait_until(lambda: (receipt_of(path, order) or ("", "")).state == "durable", "forgetting")
    room.produce(110)
    published(room, 330)
    gone = receipt_of(path, order).version
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
    order = put_order(path, "forget", {"keys": keys})
    wait_until(lambda: (receipt_of(path, order) or ("", "")).state == "durable", "forgetting")
    gone = receipt_of(path, order).version
    back = put_order(path, "rollback", {"version": goal})
    wait_until(lambda: (receipt_of(path, back) or ("", "")).state == "durable", "the rollback")
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
    again = Trainer(room.config, until_end=True, start=StartElsewhere.of(["earliest"], None))
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
    back = put_order(path, "rollback", {"version": goal})
    order = put_order(path, "forget", {"keys": [{"feature": "user_id", "id": 6}]})
    wait_until(lambda: (receipt_of(path, order) or ("", "")).state == "durable", "forgetting")
    published(room, 444)
    assert receipt_of(path, back).version < receipt_of(path, order).version
    assert ever_known(room, 6, receipt_of(path, order).version) == []
    wait_until(lambda: not running.state.changed, "a version")
    assert not {"hidden", "furthest"} & records(room)[-1].meta.trainer.keys()
    running.stop()
    wait_until(lambda: (read_status(path) or {}).get("clean_end"), "the end")
    # the same where no trainer runs
    put_order(path, "rollback", {"version": goal})
    put_order(path, "forget", {"keys": [{"feature": "user_id", "id": 7}]})
    assert execute_waiting(room.config.log, room.config.schema, window_samples=100) == 2
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
    first = put_order(path, "forget", {"keys": [{"feature": "user_id", "id": 5}]})
    wait_until(lambda: (receipt_of(path, first) or ("", "")).state == "durable", "forgetting")
    back = put_order(path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: receipt_of(path, back).state == "durable", "the rollback")
    last = put_order(path, "forget", {"keys": [{"feature": "user_id", "id": 6}]})
    wait_until(lambda: receipt_of(path, last).state == "durable", "forgetting")
    statuses = {user: room.view().row_info(0, user)["status"] for user in (4, 5, 6)}
    assert statuses == {4: "known", 5: "forgotten", 6: "forgotten"}


def test_a_full_disk_amid_going_back_is_waited_for_and_told(room, trainer, monkeypatch):
    room.produce(200)
    running = trainer()
    goal = published(room, 200)
    room.produce(100)
    published(room, 300)
    append, write, full = running.log.append, SegmentFiles.write, threading.Event()

    def append_and_fill(meta, arrays):
        if meta.restores:
            full.set()
        return append(meta, arrays)

    def refuse(self, frame: bytes) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, frame)

    monkeypatch.setattr(running.log, "append", append_and_fill)
    monkeypatch.setattr(SegmentFiles, "write", refuse)
    path = room.config.log.path
    order = put_order(path, "rollback", {"version": goal})

    def told() -> bool:
        status = read_status(path) or {}
        return status["trainer"] == "waiting" and "No space left" in status["reason"]

    wait_until(told, "the reason")
    full.clear()
    wait_until(lambda: (receipt_of(path, order) or ("", "")).state == "durable", "the rollback")
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
    order = put_order(room.config.log.path, "rollback", {"version": version})
    wait_until(lambda: (receipt_of(room.config.log.path, order) or ("", "")).state == "durable", "the refusal")
    assert says in receipt_of(room.config.log.path, order).entry["result"]["refused"]
    room.produce(10)
    wait_until(lambda: running.state.samples_trained == 110, "learning on")


def test_what_is_skipped_goes_to_the_dead_letters_and_is_not_learned_again(room, trainer):
    room.produce(300)
    running = trainer()
    goal = published(room, 300)
    room.produce(50, bad=2)
    published(room, 350)
    order = put_order(room.config.log.path, "rollback", {"version": goal, "skip": True})
    wait_until(lambda: order in running.state.executed_orders, "the rollback")
    room.produce(30)
    published(room, 330)
    assert running.state.dead_letters == {"bad_json": 2, "gate": 50}
    letters = room.letters()
    assert Counter(letter["reason"] for letter in letters) == {"bad_json": 2, "gate": 50}
    assert sorted(int(letter["offset"]) for letter in letters if letter["reason"] == "gate") == list(range(300, 350))
    expected = Counter(expected_counts(300)) + Counter(number % 37 for number in range(350, 380))
    assert room.counts() == dict(expected)


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
def test_a_sick_model_is_held_back_and_told_until_somebody_decides(room, reason):
    room.produce(600)
    trainer = Trainer(room.config)
    break_at(trainer, 300, HARMS[reason])
    thread, ended = run_in_thread(trainer)
    path = room.config.log.path
    wait_until(lambda: (read_status(path) or {}).get("gate", {}).get("state") == "holding", "the gate")
    status = read_status(path)
    assert status["trainer"] == "waiting"
    assert "health gate" in status["reason"]
    assert "--skip" in status["reason"]
    assert (status["gate"]["reason"], status["gate"]["trips"]) == (reason, 1)
    learned, version = trainer.state.samples_trained, trainer.log.last.number
    assert records(room)[-1].meta.samples_trained <= 300 < learned
    # an order finds the newest good version; what was held is learned again, and this time nothing harms it
    order = put_order(path, "forget", {"keys": [{"feature": "user_id", "id": 36}]})
    published(room, 600)
    assert receipt_of(path, order).version > version
    trainer.stop()
    thread.join(30)
    (status,) = ended
    assert (status["gate"]["state"], status["gate"]["reason"]) == ("open", reason)
    assert status["samples_trained"] == 600


def test_a_stop_while_the_gate_holds_publishes_nothing_of_it(room):
    room.produce(600)
    trainer = Trainer(room.config)
    break_at(trainer, 300, HARMS["not_finite"])
    thread, ended = run_in_thread(trainer)
    wait_until(lambda: trainer.gate.held, "the gate")
    trainer.stop()
    thread.join(30)
    (status,) = ended
    assert "gate" in status["reason"]
    assert records(room)[-1].meta.samples_trained <= 300
    assert Trainer(room.config, until_end=True).run()["samples_trained"] == 600
    assert room.counts() == expected_counts(600)


def test_until_end_does_not_wait_at_the_gate(room):
    room.produce(600)
    trainer = Trainer(room.config, until_end=True)
    break_at(trainer, 300, HARMS["not_finite"])
    with pytest.raises(HeldError, match="not finite"):
        trainer.run()
    assert read_status(room.config.log.path)["trainer"] == "failed"


@pytest.mark.parametrize("reason", HARMS)
def test_the_gate_goes_back_by_itself_and_passes_the_samples_over(room, reason):
    room.configure('[gate]\naction = "rollback"\n')
    room.produce(640)
    trainer = Trainer(room.config, until_end=True)
    break_at(trainer, 300, HARMS[reason])
    status = trainer.run()
    skipped = status["dead_letters"]["gate"]
    assert 0 < skipped < 640
    assert status["samples_trained"] == 640 - skipped
    assert status["positions"]["clicks/0"] == {"learned": 640, "committed": 640, "end": 640, "lag": 0}
    assert (status["gate"]["trips"], status["gate"]["rollbacks"]) == (1, 1)
    letters = room.letters()
    assert {letter["reason"] for letter in letters} == {"gate"}
    assert len(letters) == skipped
    users = Counter(json.loads(letter["value"])["user_id"] for letter in letters)
    assert Counter(room.counts()) + users == Counter(expected_counts(640))
    (back,) = [record for record in records(room) if record.meta.restores]
    told = back.meta.trainer["gate"]
    assert (told["reason"], told["skipped"]) == (reason, skipped)
    # a restart goes on behind it
    room.produce(60)
    assert Trainer(room.config, until_end=True).run()["samples_trained"] == 700 - skipped


def test_a_collapse_of_logloss_goes_back_to_before_it_began(room):
    room.configure('[gate]\naction = "rollback"\nlogloss_samples = 400\n', train="window_samples = 2000\n")
    room.produce(4000)
    good = Trainer(room.config, until_end=True).run()
    room.produce(600, label=lambda number: 1 - int(number % 37 % 3 == 0))  # the world upside down
    room.produce(1000)
    status = Trainer(room.config, until_end=True).run()
    assert status["gate"]["rollbacks"] >= 1
    assert status["gate"]["reason"] == "logloss"
    skipped = status["dead_letters"]["gate"]
    assert skipped >= 300
    assert status["samples_trained"] == 5600 - skipped
    assert good["scores"]["window"]["logloss"] < 0.5
    offsets = [int(letter["offset"]) for letter in room.letters()]
    assert sum(4000 <= offset < 4600 for offset in offsets) >= 300  # and what lies before, back to a version
    assert version_name(records(room)[-1].number).startswith("2.")


def test_after_a_restart_a_collapse_still_goes_back_to_before_it_began(room):
    room.configure('[gate]\naction = "rollback"\nlogloss_samples = 400\n', train="window_samples = 2000\n")
    room.produce(1500)
    Trainer(room.config, until_end=True).run()
    room.produce(8, label=lambda number: 1 - int(number % 37 % 3 == 0))
    assert Trainer(room.config, until_end=True).run()["gate"]["trips"] == 0
    room.produce(300, label=lambda number: 1 - int(number % 37 % 3 == 0))
    status = Trainer(room.config, until_end=True).run()
    assert status["gate"]["rollbacks"] >= 1
    back = next(record for record in records(room) if record.meta.restores)
    assert back.meta.samples_trained <= 1500


def test_where_the_good_versions_base_is_retired_the_gate_goes_back_as_far_as_the_log_reaches(room):
    room.configure('[gate]\naction = "rollback"\n')
    room.produce(320)
    Trainer(room.config, until_end=True).run()
    room.produce(320)
    trainer = Trainer(room.config, until_end=True)
    break_at(trainer, 320 + 128, HARMS["norm"])
    judge = trainer.gate.judge

    def judge_late(*arguments):
        if judge(*arguments) is not None and trainer.gate.held.good != 1:
            assert trainer.settle()
            assert merge_base(trainer.log.directory, window_samples=100)
            retire(trainer.log.directory, 1)
            trainer.gate.held = trainer.gate.held._replace(good=1)  # of which nothing is left
        return trainer.gate.held

    trainer.gate.judge = judge_late
    status = trainer.run()
    assert status["gate"]["rollbacks"] == 1
    (back,) = [record for record in records(room) if record.meta.restores]
    assert [back.meta.restores] == LogDirectory(room.config.log.path).look().bases


def test_too_much_passed_over_in_a_row_ends_in_an_alert(room):
    room.configure('[gate]\naction = "rollback"\nmax_skipped = 300\n')
    room.produce(1000)
    trainer = Trainer(room.config, until_end=True)
    learn = Trainer.learn

    def learn_and_harm(batch) -> None:
        learn(trainer, batch)
        with torch.no_grad():
            next(trainer.state.learner.model.parameters()).fill_(float("nan"))

    trainer.learn = learn_and_harm
    with pytest.raises(HeldError):
        trainer.run()
    assert trainer.state.gate["rollbacks"] > 1
    assert 150 < trainer.state.gate["in_a_row"] == trainer.state.dead_letters["gate"] <= 300


@pytest.mark.parametrize("text", ["20260501", "1800000000", "9" * 30, "-5", "yesterday"])
def test_what_is_no_time_in_milliseconds_is_refused(text):
    with pytest.raises(UserError, match="--from-timestamp"):
        StartElsewhere.of([], text)


def test_a_time_before_1970_is_the_beginning():
    assert StartElsewhere.of([], "1969-12-31T23:59:59.999Z") == StartElsewhere(place=0)


CLICKS = Partition("clicks", 0)


@pytest.mark.parametrize(
    ("wish", "learned"),
    [(["clicks/0=123"], 377), (["earliest"], 500), (["latest"], 0), (["clicks/0=500"], 0)],
)
def test_a_first_start_may_begin_elsewhere(room, wish, learned):
    room.produce(500)
    status = Trainer(room.config, until_end=True, start=StartElsewhere.of(wish, None)).run()
    assert status["samples_trained"] == learned
    assert status["positions"]["clicks/0"]["learned"] == 500


def test_a_start_elsewhere_is_part_of_the_next_version_and_of_no_other(room):
    room.produce(300)
    Trainer(room.config, until_end=True).run()
    Trainer(room.config, until_end=True, start=StartElsewhere.of(["clicks/0=100"], None)).run()
    moved = [record.meta.trainer["moved"] for record in records(room) if "moved" in record.meta.trainer]
    assert moved == [{"clicks/0": {"from": 300, "to": 100}}]
    assert Counter(room.counts()) == Counter(expected_counts(300)) + Counter(n % 37 for n in range(100, 300))
    room.produce(50)
    assert Trainer(room.config, until_end=True).run()["samples_trained"] == 550


def test_a_start_at_a_time_begins_with_the_first_record_that_is_not_older(room):
    room.produce(200, record_ms=1_800_000_000_000)
    room.produce(200, record_ms=1_800_000_010_000)
    for text, learned in [
        ("1800000000000", 400),
        ("1800000000001", 200),
        ("2027-01-15T08:00:05Z", 200),
        ("1800000010001", 0),
    ]:
        start = StartElsewhere.of([], text)
        positions = start.find(room.config.source, {})
        assert 400 - positions[CLICKS].offset == learned, text


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("clicks/0=101", "the partition holds the offsets 0 to 99"),
        ("clicks/1=0", "no such partition, only clicks/0"),
        ("others/0=0", "no such partition"),
    ],
)
def test_an_offset_that_is_not_there_is_refused_in_one_line_and_nothing_is_moved(room, wish, says):
    room.produce(100)
    with pytest.raises(UserError, match=says):
        Trainer(room.config, until_end=True, start=StartElsewhere.of([wish], None))
    assert Trainer(room.config, until_end=True).run()["samples_trained"] == 100


def test_a_silent_partition_stops_holding_the_event_clock_and_a_restart_remembers(room, trainer):
    room.create(partitions=2)
    room.produce(64, partition=0)
    room.produce(64, partition=1)
    running = trainer()
    wait_until(lambda: running.state.samples_trained == 128, "learning")
    both = running.state.clock.now_ms

    quiet = Partition("clicks", 1)
    feeding = threading.Event()

    def speak() -> bool:
        room.produce(64, partition=0)
        feeding.wait(0.2)
        return quiet in running.state.clock.idle and running.state.clock.now_ms > both + 64

    wait_until(speak, "the clock")
    wait_until(lambda: not running.state.changed, "a version")
    now_ms = running.state.clock.now_ms
    assert now_ms > running.state.clock.watermarks[quiet]
    running.stop()
    wait_until(lambda: (read_status(room.config.log.path) or {}).get("clean_end"), "the end")
    assert records(room)[-1].meta.trainer["idle"] == ["clicks/1"] or quiet in running.state.clock.idle
    again = Trainer(room.config)
    assert quiet in again.state.clock.idle
    assert again.state.clock.now_ms >= now_ms
    again._release()
    again.status.close(lambda: {"clean_end": True})
