"""Arrays are in memory up to a cap, then in files without names; both are counted."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from springtide.stream.join.held_bytes import HeldBytes

TEN_KB = {"numbers": ((1000,), np.int64), "pairs": ((250, 2), np.int32)}


def test_arrays_are_in_memory_then_in_files_then_in_memory_again(tmp_path: Path) -> None:
    held = HeldBytes(memory_bytes=15_000, disk_bytes=15_000, folder=tmp_path / "scratch")
    first, second, third = (held.allocate(TEN_KB) for _ in range(3))
    assert [block.is_on_disk for block in (first, second, third)] == [False, True, False]
    assert not held.fits(10_000)  # asked before, it would have been refused
    second.arrays["numbers"][:] = np.arange(1000)
    second.arrays["pairs"][:] = 7
    assert int(second.arrays["numbers"].sum()) == 499_500
    assert second.arrays["pairs"].shape == (250, 2)
    assert list((tmp_path / "scratch").iterdir()) == []
    for block in (first, second, third):
        held.free(block)
    assert (held.memory_used, held.disk_used) == (0, 0)


def test_where_a_file_cannot_be_given_its_size_zeros_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    block = HeldBytes(memory_bytes=0, disk_bytes=5_000_000, folder=tmp_path).allocate({"n": ((500_000,), np.int64)})
    assert block.is_on_disk
    assert not block.arrays["n"].any()


def test_without_a_folder_there_is_memory_alone() -> None:
    held = HeldBytes(memory_bytes=15_000, disk_bytes=15_000)
    assert held.fits(15_000)
    assert not held.fits(15_001)
