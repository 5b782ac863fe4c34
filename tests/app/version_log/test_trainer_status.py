"""The trainer's status file: of the highest epoch, with process and machine."""

import os

import pytest

from springtide.app.version_log.trainer_status import (
    TableStatus,
    TrainerStatus,
    all_statuses,
    boot_id,
    read_status,
    write_status,
)


def test_the_status_of_the_highest_epoch_is_read(tmp_path) -> None:
    assert read_status(tmp_path) is None
    assert read_status(tmp_path / "none") is None
    write_status(tmp_path, 2, TrainerStatus(version=7))
    write_status(tmp_path, 10, TrainerStatus(version=8, pid=5))
    write_status(tmp_path, 9, TrainerStatus(version=9))
    status = read_status(tmp_path)
    assert (status.version, status.epoch, status.pid) == (8, 10, 5)
    assert (status.boot_id, status.updated_ms > 0) == (boot_id(), True)
    write_status(tmp_path, 11, TrainerStatus())
    status = read_status(tmp_path)
    assert status.pid == os.getpid()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"status-{epoch:010d}.json" for epoch in (2, 9, 10, 11)]


@pytest.mark.parametrize("text", [b"", b"{", b"\0" * 512, b'{"name": "\xb1"}', b"[" * 100_000])
def test_an_unreadable_status_is_ignored(tmp_path, text: bytes) -> None:
    (tmp_path / "status-0000000001.json").write_bytes(text)  # as a power loss may leave it
    assert read_status(tmp_path) is None
    assert list(all_statuses(tmp_path)) == []


def test_table_counters_are_written_beside_the_other_keys_of_the_table(tmp_path) -> None:
    status = TrainerStatus(table=TableStatus(rows={"device": 3}, counters={"created": 5}))
    assert status.to_json()["table"]["created"] == 5
    write_status(tmp_path, 1, status)
    read = read_status(tmp_path)
    assert read.table == status.table


def test_a_wrong_field_has_its_default_and_is_named(tmp_path) -> None:
    text = '{"samples_trained": "many", "version": 7, "trainer": "asleep", "reason": "slow disk"}'
    (tmp_path / "status-0000000001.json").write_text(text)
    status = read_status(tmp_path)
    assert (status.version, status.samples_trained, status.trainer) == (7, 0, "stopped")
    for part in ("slow disk; in the status file samples_trained is invalid", "Expected `int`, got `str`", "trainer is"):
        assert part in status.reason


def test_a_status_with_missing_keys_has_their_defaults(tmp_path) -> None:
    (tmp_path / "status-0000000001.json").write_text('{"positions": {"clicks/0": {"lag": 3}}}')
    status = read_status(tmp_path)
    assert (status.lag, status.trainer, status.scores.window.auc) == (3, "stopped", None)
