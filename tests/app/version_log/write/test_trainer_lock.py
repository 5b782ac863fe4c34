"""One trainer per log."""

import os

import pytest

from springtide.app.version_log.errors import LogBusyError
from springtide.app.version_log.trainer_status import TrainerStatus, write_status
from springtide.app.version_log.write.trainer_lock import wait_until_free


def test_a_second_trainer_cannot_start(log) -> None:
    with log.writer(), pytest.raises(LogBusyError, match=f"pid {os.getpid()}.*--take-over"):
        log.open()
    with log.writer() as writer:
        assert writer.epoch == 2


def test_a_supervisor_waits_for_a_log_that_another_trainer_holds(log) -> None:
    wait_until_free(log.path / "none", wait_seconds=0.0)
    with log.writer(), pytest.raises(LogBusyError, match=f"another trainer .pid {os.getpid()}. is writing"):
        wait_until_free(log.path, wait_seconds=0.0)
    wait_until_free(log.path, wait_seconds=0.0)


def test_a_recent_status_from_another_machine_prevents_a_start(log, monkeypatch) -> None:
    with log.writer() as writer:
        epoch = writer.epoch
    write_status(log.path, epoch, TrainerStatus(boot_id="elsewhere", host="far"))
    monkeypatch.setattr("springtide.app.version_log.write.trainer_lock.FRESH_SECONDS", 600.0)
    with pytest.raises(LogBusyError, match=r"far.*--take-over"):
        log.open(wait_seconds=0.1)
    monkeypatch.setattr("springtide.app.version_log.write.trainer_lock.FRESH_SECONDS", 0.1)
    with log.writer(wait_seconds=300.0) as writer:
        epoch = writer.epoch
    monkeypatch.undo()
    write_status(log.path, epoch, TrainerStatus(boot_id="elsewhere", clean_shutdown=True))
    with log.writer() as writer:
        epoch = writer.epoch
    write_status(log.path, epoch, TrainerStatus())  # of this machine, whose lock was free: that trainer is dead
    with log.writer() as writer:
        epoch = writer.epoch
    write_status(log.path, epoch, TrainerStatus(boot_id="elsewhere"))
    with log.writer(take_over=True):
        pass
