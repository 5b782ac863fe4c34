"""Read the count-min sketch that counts ids without a row. Its layout is part of the log's format.

A sketch is blocks of 64 bytes: an age, uint32, then 60 counters, uint8. Each key has four counters in one block; its
estimate is the smallest. The age is a number of halvings: the counters of a block whose age is behind the sketch's
have still to be halved that many times.
"""

# B blocks, N keys
import numpy as np

from springtide_client.array_types import Int64Array, UInt8Array, UInt64Array

BLOCK_BYTES = 64
COUNTERS_AT, NUM_COUNTERS = 4, 60


def estimates(blocks_B64: UInt8Array, mixed_N: UInt64Array, age: int) -> Int64Array:
    """Estimate how often each key was counted, 0..255: never below the truth, sometimes above it.

    ValueError unless the blocks are uint8 (B, 64).
    """
    if blocks_B64.dtype != np.uint8 or blocks_B64.ndim != 2 or blocks_B64.shape[1] != BLOCK_BYTES:
        raise ValueError(f"a sketch is uint8 (B, {BLOCK_BYTES}), not {blocks_B64.dtype} {blocks_B64.shape}")
    return estimates_in(blocks_B64[blocks_of(mixed_N, len(blocks_B64))], mixed_N, age)


def blocks_of(mixed_N: UInt64Array, num_blocks: int) -> Int64Array:
    """Return the number of the block that holds each key's counters."""
    block_N: Int64Array = ((mixed_N >> np.uint64(32)) * np.uint64(num_blocks) >> np.uint64(32)).astype(np.int64)
    return block_N


def estimates_in(blocks_N64: UInt8Array, mixed_N: UInt64Array, age: int) -> Int64Array:
    """Estimate from the block of each key: `blocks_N64[n]` holds the counters of key n."""
    positions_N = np.arange(len(mixed_N))
    counters_N4 = np.empty((len(mixed_N), 4), np.int64)
    for i in range(4):
        byte_N = (mixed_N >> np.uint64(8 * i)) & np.uint64(255)
        at_N = COUNTERS_AT + (byte_N * np.uint64(NUM_COUNTERS) >> np.uint64(8)).astype(np.int64)
        counters_N4[:, i] = blocks_N64[positions_N, at_N]
    ages_N = np.ascontiguousarray(blocks_N64[:, :COUNTERS_AT]).view("<u4")[:, 0].astype(np.int64)
    result_N: Int64Array = counters_N4.min(axis=1) >> np.clip(age - ages_N, 0, 8)
    return result_N
