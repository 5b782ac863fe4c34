"""RocksDB's Bloom filter of a table (format version 5 and later), probed where it is mapped.

Sources: RocksDB's util/bloom_impl.h (FastLocalBloomImpl) and util/xxph3.h, for keys of ten bytes.
"""

from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.memory import multiply_high, read_uint8

SECRET_0, SECRET_8 = np.uint64(0xBE4BA423396CFEB8), np.uint64(0x1CAD21F72C81017C)
AVALANCHE = np.uint64(0x165667B19E3779F9)
NEXT_PROBE = np.uint64(0x9E3779B9)
LOW_32 = np.uint64(0xFFFFFFFF)
KEY_BYTES = np.uint64(10)


@njit(nogil=True, cache=True)
def swap_bytes(word: Any) -> Any:
    """A uint64 with its bytes in the other order."""
    word = ((word & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8)) | (
        (word >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    )
    word = ((word & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16)) | (
        (word >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    )
    return (word << np.uint64(32)) | (word >> np.uint64(32))


@njit(nogil=True, cache=True)
def hash_key(mixed: Any, feature: Any) -> Any:
    """The hash of a key: the mixed key and the feature, big-endian."""
    first = swap_bytes(mixed)  # the eight bytes as a little-endian number
    last = (first >> np.uint64(16)) | (
        (((np.uint64(feature) >> np.uint64(8)) | (np.uint64(feature) << np.uint64(8))) & np.uint64(0xFFFF))
        << np.uint64(48)
    )
    low, high = first ^ SECRET_0, last ^ SECRET_8
    hashed = KEY_BYTES + (low + high) + ((low * high) ^ multiply_high(low, high))
    hashed = (hashed ^ (hashed >> np.uint64(37))) * AVALANCHE
    return hashed ^ (hashed >> np.uint64(32))


@njit(nogil=True, cache=True)
def may_contain(address: Any, num_lines: Any, num_probes: Any, hashed: Any) -> Any:
    """False if no key of this hash was added to the filter at this address."""
    line = ((hashed & LOW_32) * np.uint64(num_lines)) >> np.uint64(32)
    start = address + np.int64(line) * 64
    probe = hashed >> np.uint64(32)
    for _ in range(num_probes):
        bit = np.int64(probe >> np.uint64(23))
        if not (read_uint8(start, bit >> 3) >> np.uint8(bit & 7)) & np.uint8(1):
            return False
        probe = (probe * NEXT_PROBE) & LOW_32
    return True
