"""Keys without rows: an admission sketch, fingerprints of evicted keys, and the ops on both."""

# U unique keys, B blocks of the sketch, G words of the ghosts, N some keys or blocks
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.store.store import zeros
from springtide.kernels.njit import njit
from springtide.kernels.types import SKETCH_BLOCK_BYTES, Ghosts, Sketch

BLOCK, COUNTERS_AT, NUM_COUNTERS = 64, 4, 60
HIGHEST = 255
AHEAD = 16
S8, S32, BYTE = np.uint64(8), np.uint64(32), np.uint64(0xFF)
LOW_HALF, ONE, ZERO = np.uint64(0xFFFF_FFFF), np.uint64(1), np.uint64(0)
Array = npt.NDArray[Any]


class Blocks(NamedTuple):
    """Two views of the same bytes, and a scratch mark for each block."""

    bytes_: Any  # uint8
    ages: Any  # uint32, every 16th is an age
    marks_B: Any  # uint8, all 0 between calls


@njit(nogil=True, cache=True)
def block_of(key_hash: Any, num_blocks: Any) -> Any:
    return np.int64(((key_hash >> S32) * np.uint64(num_blocks)) >> S32)


@njit(nogil=True, cache=True)
def counter_of(key_hash: Any, i: Any) -> Any:
    """Where in its block the key's counter i of four is."""
    return COUNTERS_AT + np.int64((((key_hash >> np.uint64(8 * i)) & BYTE) * np.uint64(NUM_COUNTERS)) >> S8)


@njit(nogil=True, cache=True)
def least(blocks: Any, block: Any, key_hash: Any, missing: Any) -> Any:
    """The estimate, with so many halvings made in thought."""
    start = block * BLOCK
    a, b = blocks.bytes_[start + counter_of(key_hash, 0)], blocks.bytes_[start + counter_of(key_hash, 1)]
    c, d = blocks.bytes_[start + counter_of(key_hash, 2)], blocks.bytes_[start + counter_of(key_hash, 3)]
    return np.int64(min(a, b, c, d)) >> min(missing, 8)


@njit(nogil=True, cache=True)
def add_counts(blocks: Any, key_hash_U: Any, occurrences_U: Any, age: Any) -> Any:
    """The estimates after adding, and the blocks that were added to, once each."""
    num_keys, num_blocks = len(key_hash_U), len(blocks.marks_B)
    estimates_U = np.empty(num_keys, np.int64)
    touched_N, num_touched = np.empty(num_keys, np.int64), 0
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            prefetch(blocks.bytes_, block_of(key_hash_U[u + AHEAD], num_blocks) * BLOCK)
        key_hash = key_hash_U[u]
        block = block_of(key_hash, num_blocks)
        start = block * BLOCK
        missing = age - np.int64(blocks.ages[block * (BLOCK // 4)])
        if missing > 0:
            for at in range(start + COUNTERS_AT, start + BLOCK):
                blocks.bytes_[at] = blocks.bytes_[at] >> min(missing, 8)
            blocks.ages[block * (BLOCK // 4)] = age
        raised = min(HIGHEST, least(blocks, block, key_hash, 0) + min(HIGHEST, occurrences_U[u]))
        for i in range(4):
            at = start + counter_of(key_hash, i)
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
def estimate(blocks: Any, key_hash_U: Any, age: Any) -> Any:
    num_keys, num_blocks = len(key_hash_U), len(blocks.marks_B)
    estimates_U = np.empty(num_keys, np.int64)
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            prefetch(blocks.bytes_, block_of(key_hash_U[u + AHEAD], num_blocks) * BLOCK)
        block = block_of(key_hash_U[u], num_blocks)
        missing = max(0, age - np.int64(blocks.ages[block * (BLOCK // 4)]))
        estimates_U[u] = least(blocks, block, key_hash_U[u], missing)
    return estimates_U


@njit(nogil=True, cache=True)
def place_of(key_hash: Any, num_words: Any) -> Any:
    return ((key_hash >> S32) * np.uint64(num_words)) >> S32


@njit(nogil=True, cache=True)
def fingerprint_of(key_hash: Any) -> Any:
    fingerprint = key_hash & LOW_HALF
    return fingerprint if fingerprint != ZERO else ONE


@njit(nogil=True, cache=True)
def add_ghosts(words_G: Any, key_hash_N: Any, tick: Any) -> None:
    for n in range(len(key_hash_N)):
        if n + AHEAD < len(key_hash_N):
            prefetch(words_G, place_of(key_hash_N[n + AHEAD], len(words_G)))
        word = (fingerprint_of(key_hash_N[n]) << S32) | (np.uint64(tick) & LOW_HALF)
        words_G[place_of(key_hash_N[n], len(words_G))] = word


@njit(nogil=True, cache=True)
def count_ghosts(words_G: Any, key_hash_N: Any, since_tick: Any) -> Any:
    num = 0
    for n in range(len(key_hash_N)):
        if n + AHEAD < len(key_hash_N):
            prefetch(words_G, place_of(key_hash_N[n + AHEAD], len(words_G)))
        place = place_of(key_hash_N[n], len(words_G))
        word = words_G[place]
        later = np.int32(np.uint32(word & LOW_HALF) - np.uint32(np.uint64(since_tick) & LOW_HALF))
        if word >> S32 == fingerprint_of(key_hash_N[n]) and later >= 0:
            words_G[place] = ZERO
            num += 1
    return num


class SketchOps:
    """The part of kernels/ops.py on the sketch and the ghosts."""

    def new_sketch(self, num_bytes: int) -> Sketch:
        num_blocks = num_bytes // SKETCH_BLOCK_BYTES
        if not 1 <= num_blocks < 2**32:
            raise ValueError(f"a sketch takes {SKETCH_BLOCK_BYTES} bytes or more, below 256 GiB, not {num_bytes}")
        bytes_ = zeros(num_blocks * SKETCH_BLOCK_BYTES, np.uint8)
        blocks = Blocks(bytes_, bytes_.view(np.uint32), np.zeros(num_blocks, np.uint8))
        return Sketch(num_blocks, blocks, bytes_.nbytes + num_blocks)

    def sketch_add(self, sketch: Sketch, key_hash_U: Array, occurrences_U: Array, age: int) -> tuple[Array, Array]:
        estimates_U, touched_N = add_counts(_blocks(sketch), key_hash_U, occurrences_U, age)
        return estimates_U, np.sort(touched_N)

    def sketch_estimate(self, sketch: Sketch, key_hash_U: Array, age: int) -> Array:
        return cast(Array, estimate(_blocks(sketch), key_hash_U, age))

    def sketch_read(self, sketch: Sketch, blocks_N: Array) -> Array:
        return cast(Array, _blocks(sketch).bytes_.reshape(-1, SKETCH_BLOCK_BYTES)[blocks_N])

    def sketch_write(self, sketch: Sketch, blocks_N: Array, bytes_N64: Array) -> None:
        if bytes_N64.dtype != np.uint8 or bytes_N64.shape != (len(blocks_N), SKETCH_BLOCK_BYTES):
            raise ValueError(f"sketch blocks {bytes_N64.dtype} {bytes_N64.shape} for uint8 {len(blocks_N), 64}")
        if len(blocks_N) and not 0 <= blocks_N.min() <= blocks_N.max() < sketch.num_blocks:
            raise ValueError(f"blocks {blocks_N.min()}..{blocks_N.max()} of a sketch of {sketch.num_blocks}")
        _blocks(sketch).bytes_.reshape(-1, SKETCH_BLOCK_BYTES)[blocks_N] = bytes_N64

    def new_ghosts(self, num: int) -> Ghosts:
        if not 1 <= num < 2**32:
            raise ValueError(f"ghosts are 1 or more, below 2**32, not {num}")
        words_G = zeros(num, np.uint64)
        return Ghosts(num, words_G, words_G.nbytes)

    def ghosts_add(self, ghosts: Ghosts, key_hash_N: Array, tick: int) -> None:
        add_ghosts(ghosts.arrays, key_hash_N, tick)

    def ghosts_count(self, ghosts: Ghosts, key_hash_N: Array, since_tick: int) -> int:
        return int(count_ghosts(ghosts.arrays, key_hash_N, since_tick))


def _blocks(sketch: Sketch) -> Blocks:
    return cast(Blocks, sketch.arrays)
