"""The ops that remember keys without rows: how often they were asked for, and when they left."""

# U unique keys, N keys or blocks, B blocks, G words
import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.types import SKETCH_BLOCK_BYTES, Ghosts, Sketch

MOST_RANGES = 2**31  # blocks or places: what keys are sorted by is an int32


class SketchOps(Launcher):
    """The part of kernels/ops.py on the sketch and the ghosts."""

    def new_sketch(self, num_bytes: int) -> Sketch:
        num_blocks = num_bytes // SKETCH_BLOCK_BYTES
        if not 1 <= num_blocks < MOST_RANGES:
            raise ValueError(f"a sketch takes {SKETCH_BLOCK_BYTES} bytes or more, below 128 GiB, not {num_bytes}")
        blocks = self._device.filled(num_blocks * SKETCH_BLOCK_BYTES, np.uint8, 0)
        return Sketch(num_blocks, blocks, num_blocks * SKETCH_BLOCK_BYTES)

    def sketch_add(self, sketch: Sketch, key_hash_U: Array, occurrences_U: Array, age: int) -> tuple[Array, Array]:
        key_hash_U = self._array("key hashes", key_hash_U, np.uint64, -1)
        num = len(key_hash_U)
        occurrences_U = self._array("occurrences", occurrences_U, np.int64, num)
        blocks_K, order_K = self._sorted(key_hash_U, sketch.num_blocks)
        estimates_U = self._device.empty(num, np.int64)
        batch = (key_hash_U, occurrences_U, blocks_K, order_K, np.int64(num), np.int64(age), estimates_U)
        self._launch("sketch", "add_counts", num, sketch.arrays, *batch)
        return estimates_U, self._compacted("sketch", "begun", num, (blocks_K,))

    def sketch_estimate(self, sketch: Sketch, key_hash_U: Array, age: int) -> Array:
        key_hash_U = self._array("key hashes", key_hash_U, np.uint64, -1)
        num, estimates_U = len(key_hash_U), self._device.empty(len(key_hash_U), np.int64)
        arguments = (sketch.arrays, np.uint64(sketch.num_blocks), key_hash_U, np.int64(num), np.int64(age), estimates_U)
        self._launch("sketch", "estimate", num, *arguments)
        return estimates_U

    def sketch_read(self, sketch: Sketch, blocks_N: Array) -> Array:
        blocks_N = self._array("blocks", blocks_N, np.int64, -1)
        num, bytes_N64 = len(blocks_N), self._device.empty((len(blocks_N), SKETCH_BLOCK_BYTES), np.uint8)
        self._launch("sketch", "read_blocks", num * 16, sketch.arrays, blocks_N, np.int64(num), bytes_N64)
        return bytes_N64

    def sketch_write(self, sketch: Sketch, blocks_N: Array, bytes_N64: Array) -> None:
        blocks_N = self._array("blocks", blocks_N, np.int64, -1)
        num, size = len(blocks_N), np.int64(sketch.num_blocks)
        bytes_N64 = self._array("sketch blocks", bytes_N64, np.uint8, num, SKETCH_BLOCK_BYTES)
        if self._exact and num:
            num_strange_1 = self._device.filled(1, np.int64, 0)
            self._launch("sketch", "count_strange", num, blocks_N, np.int64(num), size, num_strange_1)
            if num_strange := self._device.read(num_strange_1)[0]:
                raise ValueError(f"{num_strange} blocks are none of a sketch of {sketch.num_blocks}")
        self._launch("sketch", "write_blocks", num * 16, sketch.arrays, size, blocks_N, np.int64(num), bytes_N64)

    def new_ghosts(self, num: int) -> Ghosts:
        if not 1 <= num < MOST_RANGES:
            raise ValueError(f"ghosts are 1 or more, below 2**31, not {num}")
        return Ghosts(num, self._device.filled(num, np.uint64, 0), 8 * num)

    def ghosts_add(self, ghosts: Ghosts, key_hash_N: Array, tick: int) -> None:
        key_hash_N = self._array("key hashes", key_hash_N, np.uint64, -1)
        num, (places_K, order_K) = len(key_hash_N), self._sorted(key_hash_N, ghosts.num)
        batch = (key_hash_N, places_K, order_K, np.int64(num), np.int64(tick))
        self._launch("sketch", "add_ghosts", num, ghosts.arrays, *batch)

    def ghosts_count(self, ghosts: Ghosts, key_hash_N: Array, since_tick: int) -> int:
        key_hash_N = self._array("key hashes", key_hash_N, np.uint64, -1)
        num, num_found_1 = len(key_hash_N), self._device.filled(1, np.int64, 0)
        batch = (np.uint64(ghosts.num), key_hash_N, np.int64(num), np.int64(since_tick), num_found_1)
        self._launch("sketch", "count_ghosts", num, ghosts.arrays, *batch)
        return num_found_1 if self._late else self._device.read(num_found_1)[0]

    def _sorted(self, key_hash_U: Array, num_ranges: int) -> tuple[Array, Array]:
        """The ranges of the keys ascending, and the keys' positions in the batch."""
        num, ranges_U = len(key_hash_U), self._device.empty(len(key_hash_U), np.int32)
        self._launch("sketch", "ranges_of", num, key_hash_U, np.int64(num), np.uint64(num_ranges), ranges_U)
        return self._device.sort(ranges_U)
