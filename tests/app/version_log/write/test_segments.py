"""Segments as files: what their writer lets go of."""

import os
from collections import Counter
from pathlib import Path

import pytest

from app.version_log.write import segments
from app.version_log.write.segments import SegmentWriter


def test_pages_are_let_go_of_but_for_the_newest_and_never_before_they_are_synced(tmp_path: Path, monkeypatch) -> None:
    let_go: Counter[int] = Counter()  # by inode, how far
    synced: Counter[int] = Counter()
    fsync = os.fsync

    def note_sync(descriptor: int) -> None:
        fsync(descriptor)
        stat = os.fstat(descriptor)
        synced[stat.st_ino] = stat.st_size

    def note_let_go(descriptor: int, start: int, num_bytes: int, advice: int) -> None:
        inode = os.fstat(descriptor).st_ino
        assert (start, advice) == (0, os.POSIX_FADV_DONTNEED)
        assert num_bytes <= synced[inode]
        let_go[inode] = max(let_go[inode], num_bytes)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "posix_fadvise", note_let_go)
    monkeypatch.setattr(segments, "PAGE_CACHE_BYTES", 1000)
    files = SegmentWriter(tmp_path, 1, segment_bytes=700)
    for written in range(100, 3000, 100):
        files.write(b"x" * 100)
        files.sync()
        assert sum(let_go.values()) == max(0, written - 1000)
    assert len(list(tmp_path.glob("seg-*"))) == 5
    files.close()


def test_pages_that_waited_for_a_sync_are_let_go_of_a_few_at_a_time(tmp_path: Path, monkeypatch) -> None:
    let_go = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _descriptor, _start, num_bytes, _advice: let_go.append(num_bytes))
    monkeypatch.setattr(segments, "PAGE_CACHE_BYTES", 1000)
    files = SegmentWriter(tmp_path, 1, segment_bytes=1 << 20)
    for _ in range(20):
        files.write(b"x" * 100)
    assert let_go == []
    files.sync()
    for _ in range(3):
        files.write(b"x" * 100)
    assert let_go == [200, 400, 600]
    files.close()


def test_the_disk_begins_before_it_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(segments, "start_writeback", lambda _descriptor, start, size: begun.append((start, size)))
    monkeypatch.setattr(segments, "MIN_WRITEBACK_BYTES", 250)
    files = SegmentWriter(tmp_path, 1, segment_bytes=700)
    for _ in range(10):
        files.write(b"x" * 100)
        files.start_writeback()
    assert begun == [(0, 300), (300, 300), (0, 300)]  # in two files
    files.close()


def test_no_descriptor_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PAGE_CACHE_BYTES", 1000)
    before = len(os.listdir("/proc/self/fd"))
    files = SegmentWriter(tmp_path, 1, segment_bytes=100)
    for _ in range(40):
        files.write(b"x" * 90)
        files.sync()
        assert len(os.listdir("/proc/self/fd")) - before <= 13
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before
