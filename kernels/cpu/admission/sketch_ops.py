"""The ops that remember keys without rows: how often they were asked for, and when they left."""

# U unique keys, N keys or blocks
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.admission import ghosts as ghost_words
from springtide.kernels.cpu.admission import sketch as sketches
from springtide.kernels.cpu.store.huge_pages import zeros
from springtide.kernels.types import SKETCH_BLOCK_BYTES, Ghosts, Sketch

Array = npt.NDArray[Any]


class SketchOps:
    """The part of kernels/ops.py on the sketch and the ghosts."""

    def new_sketch(self, num_bytes: int) -> Sketch:
        num_blocks = num_bytes // SKETCH_BLOCK_BYTES
        if not 1 <= num_blocks < 2**32:
            raise ValueError(f"a sketch takes {SKETCH_BLOCK_BYTES} bytes or more, below 256 GiB, not {num_bytes}")
        bytes_ = zeros(num_blocks * SKETCH_BLOCK_BYTES, np.uint8)
        blocks = sketches.Blocks(bytes_, bytes_.view(np.uint32), np.zeros(num_blocks, np.uint8))
        return Sketch(num_blocks, blocks, bytes_.nbytes + num_blocks)

    def sketch_add(self, sketch: Sketch, mixed_U: Array, occurrences_U: Array, age: int) -> tuple[Array, Array]:
        estimates_U, touched_N = sketches.add(_blocks(sketch), mixed_U, occurrences_U, age)
        return estimates_U, np.sort(touched_N)

    def sketch_estimate(self, sketch: Sketch, mixed_U: Array, age: int) -> Array:
        return cast(Array, sketches.estimate(_blocks(sketch), mixed_U, age))

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

    def ghosts_add(self, ghosts: Ghosts, mixed_N: Array, tick: int) -> None:
        ghost_words.add(ghosts.arrays, mixed_N, tick)

    def ghosts_count(self, ghosts: Ghosts, mixed_N: Array, since_tick: int) -> int:
        return int(ghost_words.count(ghosts.arrays, mixed_N, since_tick))


def _blocks(sketch: Sketch) -> sketches.Blocks:
    return cast(sketches.Blocks, sketch.arrays)
