"""Commands executed while no trainer runs, and their statuses."""

import shutil

import pytest

from springtide.app.version_log.commands.offline import execute_pending
from springtide.app.version_log.commands.queue import command_status, erased_keys_report, submit_command
from springtide.app.version_log.errors import LogBusyError
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import SCHEMA, config, put


def forget(log, *users: int) -> str:
    return submit_command(log.path, "forget", {"keys": [{"feature": "user_id", "id": user} for user in users]})


def execute(log) -> int:
    return execute_pending(config(log.path), window_samples=100)


def test_forget_appends_a_version_and_its_command_file_is_deleted(log):
    with log.writer() as writer:
        last = put(writer, 7.0, samples_trained=5, expiry_cutoffs={"1": 9})
    command = forget(log, 7)
    assert command_status(log.path, command).state == "waiting"
    assert execute(log) == 1
    record = next(iter(log.directory.records(last)))
    assert record.tensors()["forgotten.id"].tolist() == [7]
    assert (record.meta.samples_trained, record.meta.expiry_cutoffs) == (5, {"1": 9})
    status = command_status(log.path, command)
    assert (status.state, status.version) == ("durable", record.number)
    assert list((log.path / "commands").iterdir()) == []
    (key,) = erased_keys_report(config(log.path), SCHEMA, status)
    assert (key.erased_in, key.oldest_file) == (record.number, "seg-0000000001-000000.log")
    assert "2 more bases" in key.removal_condition
    assert execute(log) == 0


def test_commands_are_executed_once_in_the_order_of_their_ids(log):
    with log.writer() as writer:
        goal = put(writer, 7.0)
        put(writer, 8.0)
    commands = sorted([forget(log, 7), submit_command(log.path, "rollback", {"version": goal.number})])
    assert execute(log) == 2
    records = list(log.directory.records(goal))[1:]
    assert [record.meta.executed_commands[0].id for record in records] == commands
    assert [record.meta.restores for record in records].count(goal.number) == 1
    versions = {command_status(log.path, command).version for command in commands}
    assert versions == {record.number for record in records}
    last = log.open()
    assert last.start_head == records[-1].head
    last.close()


def test_a_command_that_needs_a_table_stays_claimed_until_a_trainer_runs(log):
    with log.writer() as writer:
        put(writer, 7.0)
    command = submit_command(log.path, "limits", {"limits": {"lr": 0.5}})
    assert execute(log) == 0
    assert command_status(log.path, command).state == "claimed"


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("forget", {"keys": []}, "names no keys"),
        ("forget", {"keys": [{"feature": "itme", "id": 1}]}, "not a valid key of this log"),
        ("rollback", {"version": 3}, "is not in the log"),
        ("rollback", {"version": "3"}, "not a valid version"),
        ("rollback", {"version": (1 << 32) + 1, "skip": True}, "running trainer"),
    ],
)
def test_an_invalid_command_is_refused_in_a_version_that_changes_nothing(log, kind, body, reason):
    with log.writer() as writer:
        last = put(writer, 7.0)
    command = submit_command(log.path, kind, body)
    assert execute(log) == 1
    status = command_status(log.path, command)
    assert reason in status.entry.result["refused"]
    (record,) = log.directory.records(last)
    assert record.tensors() == {}


def test_nothing_is_executed_offline_while_a_trainer_runs(log):
    with log.writer() as writer:
        put(writer, 7.0)
        command = forget(log, 7)
        claimed = log.directory.scan().claimed_epoch
        with pytest.raises(LogBusyError):
            execute(log)
        assert log.directory.scan().claimed_epoch == claimed
    assert command_status(log.path, command).state == "waiting"


def test_a_status_is_found_in_the_bases_after_its_segment_is_deleted(log):
    with log.writer() as writer:
        random = RandomVersions(log, writer)
        random.write(3)
    command = forget(log, 7)
    execute(log)
    with log.open() as writer:
        random.writer = writer
        random.write(2)
        random.compact()
        for path in log.path.glob("seg-*"):
            path.unlink()
    status = command_status(log.path, command)
    assert (status.state, status.version, status.document()["version"]) == ("durable", 0, None)
    newest = log.directory.newest_base()
    assert newest is not None
    oldest = next(path for path in log.directory.bases() if path != newest)
    shutil.rmtree(oldest)  # as if by a compactor while the log is read: its name is still in the listing
    oldest.mkdir()
    assert command_status(log.path, command) == status


def test_a_command_that_was_never_submitted_has_no_status(log):
    assert command_status(log.path, "x") is None
    with log.writer() as writer:
        put(writer, 7.0)
    assert command_status(log.path, "0000000000000-abc") is None
