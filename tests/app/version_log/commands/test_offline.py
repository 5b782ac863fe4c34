"""Orders executed where no trainer runs, and their receipts."""

import shutil

import pytest

from app.version_log.commands.offline import execute_pending
from app.version_log.commands.queue import submit_command
from app.version_log.commands.status import command_status, erased_keys_report
from app.version_log.errors import LogBusyError
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import SCHEMA, config, put


def forget(log, *users: int) -> str:
    return submit_command(log.path, "forget", {"keys": [{"feature": "user_id", "id": user} for user in users]})


def execute(log) -> int:
    return execute_pending(config(log.path), SCHEMA, window_samples=100)


def test_a_forgetting_is_a_version_of_its_own_and_its_file_goes(log):
    with log.writer() as writer:
        last = put(writer, 7.0, samples_trained=5, expiry_cutoffs={"1": 9})
    order = forget(log, 7)
    assert command_status(log.path, order).state == "waiting"
    assert execute(log) == 1
    record = next(iter(log.directory.records(last)))
    assert record.tensors()["forgotten.id"].tolist() == [7]
    assert (record.meta.samples_trained, record.meta.expiry_cutoffs) == (5, {"1": 9})
    receipt = command_status(log.path, order)
    assert (receipt.state, receipt.version) == ("durable", record.number)
    assert list((log.path / "commands").iterdir()) == []
    (place,) = erased_keys_report(config(log.path), SCHEMA, receipt)
    assert (place["gone_since"], place["oldest_file"]) == (record.number, "seg-0000000001-000000.log")
    assert "2 more bases" in place["goes"]
    assert execute(log) == 0


def test_several_orders_are_executed_in_their_order_each_once(log):
    with log.writer() as writer:
        goal = put(writer, 7.0)
        put(writer, 8.0)
    orders = sorted([forget(log, 7), submit_command(log.path, "rollback", {"version": goal.number})])
    assert execute(log) == 2
    records = list(log.directory.records(goal))[1:]
    assert [record.meta.executed_commands[0]["id"] for record in records] == orders
    assert [record.meta.restores for record in records].count(goal.number) == 1
    told = {command_status(log.path, order).version for order in orders}
    assert told == {record.number for record in records}
    last = log.open()
    assert last.start_tip == records[-1].tip
    last.close()


def test_an_order_that_needs_a_table_waits_for_a_trainer(log):
    with log.writer() as writer:
        put(writer, 7.0)
    order = submit_command(log.path, "limits", {"limits": {"lr": 0.5}})
    assert execute(log) == 0
    assert command_status(log.path, order).state == "taken"


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("forget", {"keys": []}, "names no keys"),
        ("forget", {"keys": [{"feature": "itme", "id": 1}]}, "no key of this log"),
        ("rollback", {"version": 3}, "is not in the log"),
        ("rollback", {"version": "3"}, "no version"),
        ("rollback", {"version": (1 << 32) + 1, "skip": True}, "running trainer"),
    ],
)
def test_what_cannot_be_executed_is_refused_in_a_version_and_changes_nothing(log, kind, body, says):
    with log.writer() as writer:
        last = put(writer, 7.0)
    order = submit_command(log.path, kind, body)
    assert execute(log) == 1
    receipt = command_status(log.path, order)
    assert says in receipt.entry["result"]["refused"]
    (record,) = log.directory.records(last)
    assert record.tensors() == {}


def test_while_a_trainer_runs_nothing_is_executed_here(log):
    with log.writer() as writer:
        put(writer, 7.0)
        order = forget(log, 7)
        epochs = log.directory.scan().claimed_epoch
        with pytest.raises(LogBusyError):
            execute(log)
        assert log.directory.scan().claimed_epoch == epochs
    assert command_status(log.path, order).state == "waiting"


def test_a_receipt_outlives_the_segments_in_the_bases(log):
    with log.writer() as writer:
        random = RandomVersions(log, writer)
        random.write(3)
    order = forget(log, 7)
    execute(log)
    with log.open() as writer:
        random.writer = writer
        random.write(2)
        random.compact()
        for path in log.path.glob("seg-*"):
            path.unlink()
    receipt = command_status(log.path, order)
    assert (receipt.state, receipt.version, receipt.document()["version"]) == ("durable", 0, None)
    newest = log.directory.newest_base()
    assert newest is not None
    oldest = next(path for path in log.directory.bases() if path != newest)
    shutil.rmtree(oldest)  # by a merger, that instant: its name is still in the listing
    oldest.mkdir()
    assert command_status(log.path, order) == receipt


def test_nothing_is_known_of_an_order_that_was_never_put_down(log):
    assert command_status(log.path, "x") is None
    with log.writer() as writer:
        put(writer, 7.0)
    assert command_status(log.path, "0000000000000-abc") is None
