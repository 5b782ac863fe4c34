"""A bounded set of the ids whose string has been emitted; it is cleared as a whole when it is full.

After that a string is emitted again at the next sight of its id: it may be delivered twice, but never too late.
"""

# K keys
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.decode.parsers.byte_ops import compiled, inlined
from springtide_client.keys import hash_keys


class SeenSet:
    """An open-addressing set of key hashes, uint64, 0 = empty; at most half full between records."""

    def __init__(self, max_keys: int = 1 << 19) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, not {max_keys}")
        self.slots = np.zeros(max(16, 1 << (2 * max_keys - 1).bit_length()), np.uint64)
        self.num_keys = np.zeros(1, np.int64)

    def add_all(self, features_K: npt.NDArray[np.uint16], ids_K: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Add keys and return which of them were not in the set before, as bool (K)."""
        return np.asarray(_add_keys(self.slots, self.num_keys, hash_keys(features_K, ids_K)))

    def clear(self) -> None:
        """Empty the set."""
        self.slots[:] = 0
        self.num_keys[:] = 0


@inlined
def add_key(slots: Any, num_keys: Any, key_hash: Any) -> Any:
    """Add a key and return its slot; -1 if it was in the set before, -2 if the set has no room left for it."""
    mask = np.uint64(len(slots) - 1)
    key = max(key_hash, np.uint64(1))
    slot = key & mask
    while slots[slot] != np.uint64(0):
        if slots[slot] == key:
            return np.int64(-1)
        slot = (slot + np.uint64(1)) & mask
    if 8 * num_keys[0] >= 7 * len(slots):
        return np.int64(-2)
    slots[slot] = key
    num_keys[0] += 1
    return np.int64(slot)


@inlined
def clear_if_full(slots: Any, num_keys: Any) -> None:
    """Empty the set once it is half full."""
    if 2 * num_keys[0] >= len(slots):
        slots[:] = np.uint64(0)
        num_keys[0] = 0


@compiled
def undo_add(slots: Any, num_keys: Any, slot: Any) -> None:
    """Remove the newest key; the keys added after it must have been removed before."""
    slots[slot] = np.uint64(0)
    num_keys[0] -= 1


@njit(nogil=True, cache=True)
def _add_keys(slots: Any, num_keys: Any, key_hash_K: Any) -> Any:
    is_new_K = np.empty(len(key_hash_K), np.bool_)
    for k in range(len(key_hash_K)):
        clear_if_full(slots, num_keys)
        is_new_K[k] = add_key(slots, num_keys, key_hash_K[k]) >= 0
    return is_new_K
