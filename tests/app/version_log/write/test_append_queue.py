"""Versions on their way to disk: slow, full and failing disks, and errors of the two threads."""

import errno
import os

import numpy as np
import pytest

from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from tests.support.waiting import wait_until
from tests.support.writer_log import put


def test_versions_become_durable_without_sync(log) -> None:
    with log.writer(durable_seconds=0.01) as writer:
        head = put(writer, 1)
        wait_until(lambda: writer.durable == head)


def test_a_version_larger_than_queue_and_segment_is_written(log) -> None:
    with log.writer(segment_bytes=1 << 16, queue_bytes=1 << 16) as writer:
        heads = [put(writer, 1, trainer={"padding": "x" * 200_000}) for _ in range(3)]
    assert log.heads() == heads


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
        heads = [put(writer, 1)]
        writer.sync()
        write, failures = os.writev, []

        def fail_once(descriptor: int, pieces: list[memoryview]) -> int:
            if not failures:
                failures.append(write(descriptor, [b"".join(pieces)[:written]]))
                raise OSError(errno.EIO, "the disk is tired")
            return write(descriptor, pieces)

        monkeypatch.setattr(os, "writev", fail_once)
        heads += [put(writer, 2), put(writer, 3)]
        writer.sync()
        assert failures == [written]
        assert writer.stall_reason == ""
    assert len(list(log.path.glob("seg-*"))) == 2
    assert log.heads() == heads
    with log.writer() as writer:
        assert writer.start_head == heads[-1]


def test_a_permanent_disk_error_is_raised_by_the_next_append(log, monkeypatch) -> None:
    with log.writer() as writer:
        monkeypatch.setattr("springtide.app.version_log.write.append_queue.RETRY_DELAY_SECONDS", 0.0)

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
        monkeypatch.setattr("springtide.app.version_log.write.append_queue.RETRY_DELAY_SECONDS", 0.001)
        write, tries = writer._queue.segments.write, []

        def full(frame: bytes) -> None:
            tries.append(writer.stall_reason)
            if len(tries) < 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(frame)

        monkeypatch.setattr(writer._queue.segments, "write", full)
        head = put(writer, 1)
        writer.sync()
        assert writer.published == head
        assert "No space left" in tries[-1]
        assert writer.stall_reason == ""


def test_nothing_is_durable_after_a_failed_fsync(log, monkeypatch) -> None:
    with log.writer() as writer:
        head = put(writer, 1)
        wait_until(lambda: writer.published == head)

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(LogError, match="fsync"):
            writer.sync()
        monkeypatch.undo()
        with pytest.raises(LogError, match="fsync"):
            writer.sync()  # a later successful fsync would prove nothing
        assert writer.durable == writer.first_base_head
