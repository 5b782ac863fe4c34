"""Readahead changes no byte, and nothing fails where the kernel does not support it."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from springtide.kernels.cpu.store import readahead
from springtide.kernels.cpu.store.readahead import Readahead
from springtide_client.format.tensors import Array, advise_random_access, encode_tensors, map_tensors

ROWS_N = np.array([0, 511, 512, 70_000, 99_999, 99_999])


@pytest.fixture
def column(tmp_path: Path) -> Array:
    """100,000 numbers in a mapped file."""
    path = tmp_path / "tensors"
    path.write_bytes(b"".join(encode_tensors({"column": np.arange(100_000)})))
    return map_tensors(path)["column"]


def test_pages_read_ahead_hold_the_bytes_of_the_file(column: Array) -> None:
    advise_random_access(column)
    requests = Readahead()
    requests.observe(1, 1)
    requests.request(column, ROWS_N)
    assert np.array_equal(column[ROWS_N], ROWS_N)
    assert requests.is_worthwhile == (requests._call is not None)


def test_requested_ranges_cover_the_rows_and_no_page_twice(column: Array) -> None:
    requests, ranges = Readahead(), []

    def call(address: int, num: int) -> int:
        ranges.extend((ctypes.c_uint64 * (2 * num)).from_address(address))
        return 0

    requests._call = call
    requests.observe(1, 1)
    requests.request(column, np.arange(0, 100_000, 4096))  # every eighth page
    starts, lengths = ranges[::2], ranges[1::2]
    addresses = column.ctypes.data + 8 * np.arange(0, 100_000, 4096)
    assert all(length == 4096 for length in lengths)
    assert starts == (addresses // 4096 * 4096).tolist()
    ranges.clear()
    requests.request(column, np.arange(1000, 2000))
    (start, length) = ranges
    assert start <= column.ctypes.data + 8000
    assert start + length >= column.ctypes.data + 16_000
    assert length <= 4 * 4096


def test_reads_from_memory_request_nothing(column: Array) -> None:
    requests = Readahead()
    requests._call = refuse
    assert not requests.is_worthwhile
    requests.request(column, ROWS_N)
    requests.observe(1, 100)
    requests.request(column, ROWS_N)
    assert not requests.is_worthwhile


@pytest.mark.parametrize("make", [lambda pid: None, lambda pid: refuse])
def test_a_kernel_without_the_call_is_not_called_again(
    column: Array, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], object]
) -> None:
    monkeypatch.setattr(readahead, "_process_madvise", make)
    requests = Readahead()
    requests.observe(1, 1)
    requests.request(column, ROWS_N)
    assert not requests.is_worthwhile


def refuse(address: int, num: int) -> int:
    """Return what the system call returns where the kernel does not have it."""
    return -1
