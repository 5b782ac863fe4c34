"""The log writer: appended versions are read, durable ones survive, and a replaced writer changes nothing."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from springtide_client.errors import LogError
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.log.directory import LogDirectory
from springtide_client.schema import Schema

from app.version_log.errors import FencedError, LogBusyError
from app.version_log.read.segments import scan_segment
from app.version_log.trainer_status import TrainerStatus, write_status
from app.version_log.write.writer import LogWriter
from tests.support.waiting import wait_until
from tests.support.writer_log import SCHEMA, WriterLog, config, put

ROOT = Path(__file__).parents[4]


def start_appender(log: WriterLog, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "deploy" / "client")))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.app.version_log.write.appender", str(log.path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("started")
    return process


def read_durable(process: subprocess.Popen[str]) -> Tip:
    assert process.stdout is not None
    number, checksum = process.stdout.readline().split()
    return Tip(int(number), int(checksum))


def kill(process: subprocess.Popen[str]) -> list[Tip]:
    """Kill the process; return everything it reported as durable."""
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return [Tip(*map(int, line.split())) for line in said.splitlines() if len(line.split()) == 2 and line[-1:] != ""]


def test_appended_versions_are_read_in_order_with_their_contents(log) -> None:
    with log.writer() as writer:
        tips = [put(writer, step + 1, step=step) for step in range(5)]
        writer.sync()
        records = list(log.directory.records(writer.start_tip))
    assert [record.tip for record in records] == tips
    assert [record.meta.step for record in records] == list(range(5))
    assert [record.tensors()["rows.value"][0, 0] for record in records] == [1, 2, 3, 4, 5]
    assert all(record.meta.created_ms > 0 for record in records)


def test_the_next_writer_continues_from_the_tip(log) -> None:
    with log.writer() as writer:
        tips = [put(writer, 1), put(writer, 2)]
    with log.writer() as writer:
        assert writer.epoch == 2
        assert writer.start_tip == writer.durable == writer.published == tips[-1]
        tips.append(put(writer, 3))
        assert tips[-1].number == (2 << 32) + 1
    assert log.tips() == tips


def test_a_new_log_refuses_versions_before_its_first_base(log) -> None:
    with LogWriter.open(config(log.path), schema=SCHEMA) as writer:
        assert writer.start_tip is None
        with pytest.raises(LogError, match="base"):
            put(writer, 1)


def test_a_version_is_durable_after_sync_and_records_what_was_durable_before(log) -> None:
    with log.writer() as writer:
        first = put(writer, 1)
        assert writer.durable == writer.first_base_tip
        writer.sync()
        assert writer.durable == writer.published == first
        put(writer, 2)
        writer.sync()
        durable = [record.meta.durable for record in log.directory.records(writer.first_base_tip)]
        assert durable == [writer.first_base_tip.number, first.number]


def test_versions_become_durable_without_sync(log) -> None:
    with log.writer(durable_seconds=0.01) as writer:
        tip = put(writer, 1)
        wait_until(lambda: writer.durable == tip)


def test_segments_roll_over_and_are_read_in_sequence(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        tips = [put(writer, 1, trainer={"padding": "x" * 20_000}) for _ in range(20)]
    assert len(list(log.path.glob("seg-*"))) == 7
    assert log.tips() == tips


def test_a_version_larger_than_queue_and_segment_is_written(log) -> None:
    with log.writer(segment_bytes=1 << 16, queue_bytes=1 << 16) as writer:
        tips = [put(writer, 1, trainer={"padding": "x" * 200_000}) for _ in range(3)]
    assert log.tips() == tips


def test_copied_and_owned_versions_form_one_chain(log) -> None:
    big = np.arange(50_000.0)
    with log.writer() as writer:
        first = put(writer, 1)
        numbers = [writer.append_owned(VersionMeta(step=step), {"dense.w": big + step}) for step in (2, 3)]
        assert writer.last_number == numbers[-1]
        last = put(writer, 4)
        numbers.append(writer.append_owned(VersionMeta(step=5), {}))
    tips = log.tips()
    assert tips[0] == first
    assert tips[3] == last
    assert [tip.number for tip in tips] == [first.number, *numbers[:2], last.number, numbers[2]]
    steps = [record.tensors()["dense.w"][0] for record in log.directory.records(None) if record.meta.step in (2, 3)]
    assert steps == [2.0, 3.0]


def test_an_encoding_error_is_raised_by_the_next_call(log) -> None:
    with log.writer() as writer:
        writer.append_owned(VersionMeta(), {"dense.w": np.zeros(3, np.complex128)})
        with pytest.raises(LogError, match="cannot be encoded"):
            writer.sync()


@pytest.mark.parametrize("thread", ["write", "sync"])
def test_the_error_that_ends_a_thread_is_raised_by_the_next_append(log, monkeypatch, thread: str) -> None:
    with log.writer(durable_seconds=0.001) as writer:

        def fail(*_: object) -> int:
            raise TypeError("unexpected")

        monkeypatch.setattr(writer._queue.segments, thread, fail)
        put(writer, 1)
        wait_until(lambda: "TypeError" in writer.stall_reason)
        with pytest.raises(LogError, match="TypeError: unexpected"):
            put(writer, 2)


@pytest.mark.parametrize("written", [0, 1, 47, 48, 300])
def test_a_failed_append_is_retried_in_a_new_file(log, monkeypatch, written: int) -> None:
    with log.writer() as writer:
        tips = [put(writer, 1)]
        writer.sync()
        write, failures = os.write, []

        def fail_once(descriptor: int, data: bytes) -> int:
            if len(data) < 300:  # not a record
                return write(descriptor, data)
            if not failures:
                failures.append(write(descriptor, data[:written]))
            raise OSError(errno.EIO, "the disk is tired")

        def fail_then_write(descriptor: int, data: bytes) -> int:
            if not failures:
                return fail_once(descriptor, data)
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", fail_then_write)
        tips += [put(writer, 2), put(writer, 3)]
        writer.sync()
        assert failures == [written]
        assert writer.stall_reason == ""
    assert len(list(log.path.glob("seg-*"))) == 2
    assert log.tips() == tips
    with log.writer() as writer:
        assert writer.start_tip == tips[-1]


def test_a_permanent_disk_error_is_raised_by_the_next_append(log, monkeypatch) -> None:
    with log.writer() as writer:
        monkeypatch.setattr("app.version_log.write.append_queue.RETRY_DELAY_SECONDS", 0.0)

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, "the disk is gone")

        monkeypatch.setattr(writer._queue.segments, "write", fail)
        put(writer, 1)
        with pytest.raises(LogError, match="the disk is gone"):
            writer.sync()
        with pytest.raises(LogError, match="the disk is gone"):
            put(writer, 2)


def test_the_writer_waits_for_a_full_disk(log, monkeypatch) -> None:
    with log.writer() as writer:
        monkeypatch.setattr("app.version_log.write.append_queue.RETRY_DELAY_SECONDS", 0.001)
        write, tries = writer._queue.segments.write, []

        def full(frame: bytes) -> None:
            tries.append(writer.stall_reason)
            if len(tries) < 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(frame)

        monkeypatch.setattr(writer._queue.segments, "write", full)
        tip = put(writer, 1)
        writer.sync()
        assert writer.published == tip
        assert "No space left" in tries[-1]
        assert writer.stall_reason == ""


def test_nothing_is_durable_after_a_failed_fsync(log, monkeypatch) -> None:
    with log.writer() as writer:
        tip = put(writer, 1)
        wait_until(lambda: writer.published == tip)

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(LogError, match="fsync"):
            writer.sync()
        monkeypatch.undo()
        with pytest.raises(LogError, match="fsync"):
            writer.sync()  # a later successful fsync would prove nothing
        assert writer.durable == writer.first_base_tip


def test_a_second_trainer_cannot_start(log) -> None:
    with log.writer(), pytest.raises(LogBusyError, match=f"pid {os.getpid()}.*--take-over"):
        log.open()
    with log.writer() as writer:
        assert writer.epoch == 2


def test_taking_over_fences_the_other_trainer(log) -> None:
    with log.writer() as old:
        tips = [put(old, 1)]
        old.sync()
        with log.writer(take_over=True) as new:
            assert new.start_tip == tips[-1]
            tips.append(put(new, 2))
            new.sync()
            put(old, 99)
            with pytest.raises(FencedError):
                old.sync()
            assert old.durable == tips[0]
            assert log.tips() == tips
            with pytest.raises(LogBusyError):  # the new trainer holds the lock
                log.open()
        with pytest.raises(FencedError):
            put(old, 98)
    assert log.tips() == tips


def test_what_a_fenced_trainer_writes_is_never_read_and_never_durable(log) -> None:
    old = log.open()
    tips = [put(old, 1)]
    old.sync()
    follower = log.directory.follow(old.first_base_tip)
    assert [record.tip for record in follower.read()] == tips
    new = log.open(take_over=True)
    # it does not check for a higher epoch: it writes beyond the seal of its file, and into a new file
    old.directory.is_fenced = lambda epoch: False
    put(old, 66)
    old.sync()
    old._queue.segments._torn = True
    put(old, 67)
    old.sync()
    assert len(list(log.path.glob("seg-0000000001-*"))) == 2
    assert follower.read() == []
    tips.append(put(new, 2))
    new.sync()
    assert [record.tip for record in follower.read()] == tips[1:]
    assert log.tips() == tips
    old.close()
    new.close()
    with log.writer() as third:
        assert third.start_tip == tips[-1]
    follower.close()


def test_a_recent_status_from_another_machine_prevents_a_start(log, monkeypatch) -> None:
    with log.writer() as writer:
        epoch = writer.epoch
    write_status(log.path, epoch, TrainerStatus(boot_id="elsewhere", host="far"))
    monkeypatch.setattr("app.version_log.write.trainer_lock.FRESH_SECONDS", 600.0)
    with pytest.raises(LogBusyError, match=r"far.*--take-over"):
        log.open(wait_seconds=0.1)
    monkeypatch.setattr("app.version_log.write.trainer_lock.FRESH_SECONDS", 0.1)
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


def test_another_schema_is_refused(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
    with pytest.raises(LogError, match="another \\[schema\\]"):
        LogWriter.open(config(log.path), schema=Schema(labels=("order",), dense=("age",)))


def test_an_epoch_with_a_manifest_but_no_claim_is_not_reused(log) -> None:
    with log.writer() as writer:
        tip = put(writer, 1)
    (log.path / "epoch-0000000001.claim").unlink()
    assert log.tips()[-1] == tip
    with log.writer() as writer:
        assert writer.epoch == 2
        later = put(writer, 2)
        writer.sync()
        assert log.tips() == [tip, later]


def test_a_log_without_its_bases_is_refused(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
    for base in log.directory.bases():
        base.rename(log.path / f"lost-{base.name}")
    with pytest.raises(LogError, match="lost its bases"):
        log.open()


@pytest.mark.parametrize("cut", [1, 20, 47, 48, 100])
def test_a_torn_tail_is_ignored(log, cut: int) -> None:
    with log.writer() as writer:
        tips = [put(writer, 1), put(writer, 2)]
    segment = next(log.path.glob("seg-*"))
    os.truncate(segment, segment.stat().st_size - cut)
    with log.writer() as writer:
        assert writer.start_tip == tips[0]
        tip = put(writer, 3)
    assert log.tips() == [tips[0], tip]
    assert tip.number > tips[1].number


def test_a_flipped_bit_ends_the_valid_log_and_the_next_epoch_continues_there(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        tips = [put(writer, 1, trainer={"padding": "x" * 20_000}) for _ in range(9)]
    first = min(log.path.glob("seg-*"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 4
    first.write_bytes(data)
    with log.writer() as writer:
        assert writer.start_tip == tips[0]
        tip = put(writer, 2)
    assert log.tips() == [tips[0], tip]
    with log.writer() as writer:
        assert writer.start_tip == tip


def test_a_damaged_base_is_skipped(log) -> None:
    with log.writer() as writer:
        tips = [put(writer, 1), put(writer, 2)]
        writer.sync()
        newer = log.path / f"base-{tips[0].number:020d}"
        newer.mkdir()
        (newer / "manifest.json").write_text("{")
    with log.writer() as writer:
        assert writer.start_tip == tips[-1]


def test_a_kill_loses_nothing_durable_and_the_chain_stays_intact(log) -> None:
    said: list[Tip] = []
    for _ in range(4):
        process = start_appender(log)
        said += [read_durable(process) for _ in range(3)]
        said += kill(process)
    with log.writer() as writer:
        assert writer.epoch == 5
        tip = put(writer, 5)
    tips = log.tips()
    assert tips[-1] == tip
    assert set(said) <= {*tips, *(Tip(epoch << 32, epoch << 32) for epoch in range(6))}
    assert [t.number for t in tips] == sorted({t.number for t in tips})


def test_a_power_loss_loses_only_what_was_not_durable(log) -> None:
    process = start_appender(log)
    durable = [read_durable(process) for _ in range(3)][-1]
    kill(process)
    sizes = {path: path.stat().st_size for path in log.path.glob("seg-*")}
    ends: dict[Path, int] = {}
    for path in sorted(sizes):
        ends[path] = max([end for header, end in scan_segment(path) if header.number <= durable.number], default=0)
    # the disk may keep any prefix of what was not fsynced: here the durable part and a bit of the next record
    for path, size in sizes.items():
        os.truncate(path, min(size, ends[path] + 13))
    with log.writer() as writer:
        assert writer.start_tip == durable
        tip = put(writer, 7)
    assert log.tips()[-2:] == [durable, tip]


def test_a_fenced_trainer_that_resumes_after_a_pause_changes_nothing(log) -> None:
    process = start_appender(log)
    said = [read_durable(process)]
    process.send_signal(signal.SIGSTOP)
    with log.writer(take_over=True) as writer:
        past = writer.start_tip
        assert past is not None
        tips = [put(writer, 1)]
        writer.sync()
        process.send_signal(signal.SIGCONT)
        process.wait(timeout=300)  # it notices, and exits with an error
        assert process.returncode == 1
        tips.append(put(writer, 2))
    process.communicate()
    records = list(LogDirectory(log.path).records(past))
    assert [record.tip for record in records] == tips
    assert said[0].number <= past.number


def test_is_full_when_the_folder_exceeds_log_bytes(log) -> None:
    with log.writer(durable_seconds=0.01, log_bytes=1 << 16) as writer:
        assert not writer.is_full
        put(writer, 1, trainer={"padding": "x" * 100_000})
        wait_until(lambda: writer.is_full)


def test_append_does_not_change_the_meta_it_is_given(log) -> None:
    meta = VersionMeta()
    with log.writer() as writer:
        writer.append(meta, {})
    assert meta == VersionMeta()
