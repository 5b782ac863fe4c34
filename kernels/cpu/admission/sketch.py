"""The counting sketch that admits keys: four counters of 8 bits a key, all in one block, a cache line, with its age.

A block's first four bytes are its age, the other 60 its counters.
`springtide_client.rows.admission_counts` reads the same layout.
"""

# U keys, B blocks, N some of them
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.instructions import prefetch

BLOCK, COUNTERS_AT, NUM_COUNTERS = 64, 4, 60
HIGHEST = 255
AHEAD = 16
S8, S32, BYTE = np.uint64(8), np.uint64(32), np.uint64(0xFF)


class Blocks(NamedTuple):
    """Two views of the same bytes, and a scratch mark for each block."""

    bytes_: Any  # uint8
    ages: Any  # uint32, every 16th is an age
    marks_B: Any  # uint8, all 0 between calls


@njit(nogil=True, cache=True)
def block_of(mixed: Any, num_blocks: Any) -> Any:
    return np.int64(((mixed >> S32) * np.uint64(num_blocks)) >> S32)


@njit(nogil=True, cache=True)
def counter_of(mixed: Any, i: Any) -> Any:
    """Where in its block the key's counter i of four is."""
    return COUNTERS_AT + np.int64((((mixed >> np.uint64(8 * i)) & BYTE) * np.uint64(NUM_COUNTERS)) >> S8)


@njit(nogil=True, cache=True)
def least(blocks: Any, block: Any, mixed: Any, missing: Any) -> Any:
    """The estimate, with so many halvings made in thought."""
    start = block * BLOCK
    a, b = blocks.bytes_[start + counter_of(mixed, 0)], blocks.bytes_[start + counter_of(mixed, 1)]
    c, d = blocks.bytes_[start + counter_of(mixed, 2)], blocks.bytes_[start + counter_of(mixed, 3)]
    return np.int64(min(a, b, c, d)) >> min(missing, 8)


@njit(nogil=True, cache=True)
def add(blocks: Any, mixed_U: Any, occurrences_U: Any, age: Any) -> Any:
    """The estimates after adding, and the blocks that were added to, once each."""
    num_keys, num_blocks = len(mixed_U), len(blocks.marks_B)
    estimates_U = np.empty(num_keys, np.int64)
    touched_N, num_touched = np.empty(num_keys, np.int64), 0
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            prefetch(blocks.bytes_, block_of(mixed_U[u + AHEAD], num_blocks) * BLOCK)
        mixed = mixed_U[u]
        block = block_of(mixed, num_blocks)
        start = block * BLOCK
        missing = age - np.int64(blocks.ages[block * (BLOCK // 4)])
        if missing > 0:
            for at in range(start + COUNTERS_AT, start + BLOCK):
                blocks.bytes_[at] = blocks.bytes_[at] >> min(missing, 8)
            blocks.ages[block * (BLOCK // 4)] = age
        raised = min(HIGHEST, least(blocks, block, mixed, 0) + min(HIGHEST, occurrences_U[u]))
        for i in range(4):
            at = start + counter_of(mixed, i)
            blocks.bytes_[at] = max(np.int64(blocks.bytes_[at]), raised)
        estimates_U[u] = raised
        if blocks.marks_B[block] == 0:
            blocks.marks_B[block] = 1
            touched_N[num_touched] = block
            num_touched += 1
    for n in range(num_touched):
        blocks.marks_B[touched_N[n]] = 0
    return estimates_U, touched_N[:num_touched]


@njit(nogil=True, cache=True)
def estimate(blocks: Any, mixed_U: Any, age: Any) -> Any:
    num_keys, num_blocks = len(mixed_U), len(blocks.marks_B)
    estimates_U = np.empty(num_keys, np.int64)
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            prefetch(blocks.bytes_, block_of(mixed_U[u + AHEAD], num_blocks) * BLOCK)
        block = block_of(mixed_U[u], num_blocks)
        missing = max(0, age - np.int64(blocks.ages[block * (BLOCK // 4)]))
        estimates_U[u] = least(blocks, block, mixed_U[u], missing)
    return estimates_U
