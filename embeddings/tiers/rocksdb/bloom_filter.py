"""Which keys a database may contain: most absent keys are recognized without reading the disk."""

# N keys
import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import BoolArray
from springtide.kernels.cpu.admission import bloom_filter

UInt64Array = npt.NDArray[np.uint64]
LINE = 64
FIRST_KEYS = 1 << 15
GROWTH = 4


class KeyFilter:
    """Bloom filters of 2 bytes a key; each passes at most 0.2 % of absent keys. When full, a larger one is added.

    One thread may add while others look up: a key is found once `add` has returned.
    """

    def __init__(self, num_keys: int = FIRST_KEYS) -> None:
        """`num_keys`: how many keys the first filter has room for."""
        self._parts: tuple[UInt64Array, ...] = ()
        self._room = 0  # keys that still fit into the newest part
        self._next_keys = max(FIRST_KEYS, num_keys)

    def add(self, mixed_N: UInt64Array) -> None:
        mixed_N = mixed_N[~self.contains(mixed_N)]
        while len(mixed_N):
            if self._room <= 0:
                self._grow()
            now, mixed_N = mixed_N[: self._room], mixed_N[self._room :]
            self._room -= int(bloom_filter.add(self._parts[-1], now))

    def contains(self, mixed_N: UInt64Array) -> BoolArray:
        """Which keys may have been added; false means certainly not."""
        maybe_N = np.zeros(len(mixed_N), np.bool_)
        for words in reversed(self._parts):
            maybe_N |= bloom_filter.contains(words, mixed_N)
        return maybe_N

    def num_bytes(self) -> int:
        return sum(words.nbytes for words in self._parts)

    def _grow(self) -> None:
        num_blocks = -(-self._next_keys // bloom_filter.KEYS_A_BLOCK)
        num_words = num_blocks * bloom_filter.BLOCK_WORDS
        raw = np.zeros(num_words + LINE // 8, np.uint64)
        start = -raw.ctypes.data % LINE // 8
        self._parts = (*self._parts, raw[start : start + num_words])
        self._room, self._next_keys = self._next_keys, self._next_keys * GROWTH
