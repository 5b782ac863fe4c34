"""Memory for rows handed out, used again once nobody holds them: a fresh page costs more than the rows on it."""

# K keys, D dimension
import sys

import numpy as np

from embeddings.rows import Float32Array

MAX_BUFFERS = 4
UNUSED = 3  # references to a buffer that only the list, the loop and the question know of


class OutputBuffers:
    """Arrays (K, D) over a few kept buffers. One thread takes; any may let go, by forgetting its array."""

    def __init__(self) -> None:
        self._kept: list[Float32Array] = []

    def take(self, num_keys: int, dim: int) -> Float32Array:
        """An array of any content."""
        size = num_keys * dim
        for buffer in self._kept:
            if size <= buffer.size <= 4 * size and sys.getrefcount(buffer) == UNUSED:
                return buffer[:size].reshape(num_keys, dim)
        buffer = np.empty(size + size // 8, np.float32)
        self._kept = [*(kept for kept in self._kept if sys.getrefcount(kept) > UNUSED), buffer][-MAX_BUFFERS:]
        return buffer[:size].reshape(num_keys, dim)

    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._kept)
