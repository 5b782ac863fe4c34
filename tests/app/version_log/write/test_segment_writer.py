"""Segment files: writeback, and pages dropped from the page cache."""

import os
from collections import Counter
from pathlib import Path

import pytest

from springtide.app.version_log.write import segment_writer
from springtide.app.version_log.write.segment_writer import SegmentWriter
from tests.support.descriptors import open_files


def test_synced_pages_are_dropped_except_the_newest(tmp_path: Path, monkeypatch) -> None:
    dropped: Counter[int] = Counter()  # inode -> bytes
    synced: Counter[int] = Counter()
    fsync = os.fsync

    def note_sync(descriptor: int) -> None:
        fsync(descriptor)
        stat = os.fstat(descriptor)
        synced[stat.st_ino] = stat.st_size

    def note_drop(descriptor: int, start: int, num_bytes: int, advice: int) -> None:
        inode = os.fstat(descriptor).st_ino
        assert (start, advice) == (0, os.POSIX_FADV_DONTNEED)
        assert num_bytes <= synced[inode]
        dropped[inode] = max(dropped[inode], num_bytes)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "posix_fadvise", note_drop)
    monkeypatch.setattr(segment_writer, "PAGE_CACHE_BYTES", 1000)
    files = SegmentWriter(tmp_path, 1, segment_bytes=700)
    for written in range(100, 3000, 100):
        files.write(b"x" * 100)
        files.sync()
        assert sum(dropped.values()) == max(0, written - 1000)
    assert len(list(tmp_path.glob("seg-*"))) == 5
    files.close()


def test_pages_synced_late_are_dropped_a_few_at_a_time(tmp_path: Path, monkeypatch) -> None:
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _descriptor, _start, num_bytes, _advice: dropped.append(num_bytes))
    monkeypatch.setattr(segment_writer, "PAGE_CACHE_BYTES", 1000)
    files = SegmentWriter(tmp_path, 1, segment_bytes=1 << 20)
    for _ in range(20):
        files.write(b"x" * 100)
    assert dropped == []
    files.sync()
    for _ in range(3):
        files.write(b"x" * 100)
    assert dropped == [200, 400, 600]
    files.close()


def test_writeback_starts_before_the_fsync(tmp_path: Path, monkeypatch) -> None:
    started: list[tuple[int, int]] = []
    monkeypatch.setattr(segment_writer, "start_writeback", lambda _file, start, size: started.append((start, size)))
    monkeypatch.setattr(segment_writer, "MIN_WRITEBACK_BYTES", 250)
    files = SegmentWriter(tmp_path, 1, segment_bytes=700)
    for _ in range(10):
        files.write(b"x" * 100)
        files.start_writeback()
    assert started == [(0, 300), (300, 300), (0, 300)]  # in two files
    files.close()


def test_close_closes_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "PAGE_CACHE_BYTES", 1000)
    files = SegmentWriter(tmp_path, 1, segment_bytes=100)
    for _ in range(40):
        files.write(b"x" * 90)
        files.sync()
        assert len(open_files(tmp_path)) <= 13
    files.close()
    assert open_files(tmp_path) == []
