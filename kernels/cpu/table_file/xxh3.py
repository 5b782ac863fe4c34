"""XXH3 with 64 bits of more than 240 bytes, and the checksum that RocksDB stores after a block.

Sources: xxHash's specification; RocksDB's table/format.h (format version 6).
"""

from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.memory import multiply_high, read_uint8, read_uint64

SHORTEST = 241  # shorter inputs have other formulas
SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743"
        "248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7"
        "c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16"
        "be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)
# the secret's 64-bit words from every place that is used: stripes begin 8 bytes apart, merging 11 in, the last at 121
WORDS_AT = np.array([int.from_bytes(SECRET.tobytes()[i : i + 8], "little") for i in range(185)], np.uint64)
P32_1, P32_2, P32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
P64_1, P64_2, P64_3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
P64_4, P64_5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
MIX = np.uint64(0x165667919E3779F9)
START = np.array([P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1], np.uint64)
LOW_32 = np.uint64(0xFFFFFFFF)
LAST_BYTE_PRIME = np.uint64(0x6B9083D9)
STRIPE, BLOCK_STRIPES = 64, 16


@njit(nogil=True, cache=True)
def _accumulate(sums_8: Any, address: Any, secret_at: Any) -> None:
    for i in range(8):
        word = read_uint64(address, i)
        mixed = word ^ WORDS_AT[secret_at + 8 * i]
        sums_8[i ^ 1] += word
        sums_8[i] += (mixed & LOW_32) * (mixed >> np.uint64(32))


@njit(nogil=True, cache=True)
def hash_bytes(address: Any, num_bytes: Any) -> Any:
    """XXH3_64bits of SHORTEST or more bytes at an address."""
    sums_8 = START.copy()
    num_blocks = (num_bytes - 1) // (STRIPE * BLOCK_STRIPES)
    at = address
    for _ in range(num_blocks):
        for i in range(BLOCK_STRIPES):
            _accumulate(sums_8, at, 8 * i)
            at += STRIPE
        for i in range(8):
            word = sums_8[i]
            sums_8[i] = (word ^ (word >> np.uint64(47)) ^ WORDS_AT[128 + 8 * i]) * P32_1
    for i in range((address + num_bytes - 1 - at) // STRIPE):
        _accumulate(sums_8, at, 8 * i)
        at += STRIPE
    _accumulate(sums_8, address + num_bytes - STRIPE, 121)
    merged = np.uint64(num_bytes) * P64_1
    for i in range(4):
        left = sums_8[2 * i] ^ WORDS_AT[11 + 16 * i]
        right = sums_8[2 * i + 1] ^ WORDS_AT[19 + 16 * i]
        merged += (left * right) ^ multiply_high(left, right)
    merged = (merged ^ (merged >> np.uint64(37))) * MIX
    return merged ^ (merged >> np.uint64(32))


@njit(nogil=True, cache=True)
def block_checksum(address: Any, num_bytes: Any, offset: Any, base: Any) -> Any:
    """The checksum of a block of SHORTEST or more bytes: its contents, its kind in the byte after them, its offset.

    `base`: of the file's footer; 0 = the offset does not count.
    """
    kind = np.uint64(read_uint8(address, num_bytes))
    checksum = (hash_bytes(address, num_bytes) & LOW_32) ^ ((kind * LAST_BYTE_PRIME) & LOW_32)
    if base:
        place = np.uint64(offset)
        checksum += np.uint64(base) ^ (((place & LOW_32) + (place >> np.uint64(32))) & LOW_32)
    return checksum & LOW_32
