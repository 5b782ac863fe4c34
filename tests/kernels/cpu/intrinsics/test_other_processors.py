"""Kernels, and the instructions in them that Numba does not offer by name, compile for processors other than this."""

import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from springtide.kernels.cpu.intrinsics import instructions, simd
from tests.support.other_processors import check, recorded
from tests.support.processes import our_environment
from tests.support.scale import IS_LONG


@njit
def every_instruction(words, bytes_16, row, halves):
    """Uses each of them; the numbers mean nothing."""
    instructions.prefetch(words, 0)
    word = instructions.lowest_words(words, 0, -1, 2**62) + instructions.equal_bytes(bytes_16, 0, 7)
    address = bytes_16.ctypes.data
    instructions.prefetch_address(address)
    instructions.write_uint8(address, np.uint8(3))
    instructions.write_uint64(address, np.uint64(5))
    instructions.copy_bytes(address + 8, address, 8)
    word += instructions.read_uint64(address, 1) + instructions.read_uint8(address, 0)
    word += instructions.multiply_high(np.uint64(2**63), np.uint64(6)) + instructions.trailing_zeros(np.uint64(8))
    word += instructions.leading_zeros(np.uint64(1)) + instructions.bits_of_float32(row[0])
    zero, rest = np.uint64(0), np.uint64(5)
    lanes = simd.zeros(8)
    lanes = simd.load(lanes, row, zero, rest) * np.float32(2) + simd.load(lanes, halves, zero, rest)
    lanes = simd.sqrt(simd.absolute(lanes - row[1])) / (lanes + np.float32(1))
    lanes = simd.copysign_nonzero(np.float32(1), simd.zero_where_at_most(lanes, np.float32(0.5), lanes))
    simd.prefetch_lanes(lanes, row, zero)
    simd.store(row, zero, rest, lanes)
    simd.store(halves, zero, rest, lanes)
    return word, simd.horizontal_sum(lanes)


def test_every_instruction_compiles_for_other_processors() -> None:
    words = np.zeros(24, np.uint64)
    aligned = words[-words.ctypes.data % 64 // 8 :][:16]
    with recorded() as codes:
        every_instruction(aligned, np.zeros(32, np.uint8)[:16], np.ones(8, np.float32), np.zeros(8, np.uint16))
    assert len(codes) > 1
    check(codes)


@pytest.mark.skipif(not IS_LONG, reason="compiles for minutes: make torture")
def test_every_kernel_compiles_for_other_processors(tmp_path) -> None:
    command = [sys.executable, "-m", "tests.support.other_processors", "learn", "serve"]
    done = subprocess.run(
        command, env=our_environment(NUMBA_CACHE_DIR=str(tmp_path)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 100
