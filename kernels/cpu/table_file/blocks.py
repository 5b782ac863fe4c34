"""The blocks of a RocksDB table: the index as arrays, and one key in a block of rows.

Source: RocksDB's block-based table format. Entries hold the bytes shared with the key before, the key's rest and the
value; every 16th key is whole and is listed at the block's end. A key has ten bytes and eight more: kind and sequence.
"""

from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import (
    multiply_high,
    read_uint8,
    read_uint16,
    read_uint32,
    read_uint64,
)
from springtide.kernels.njit import njit

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


SECRET_0, SECRET_8 = np.uint64(0xBE4BA423396CFEB8), np.uint64(0x1CAD21F72C81017C)
AVALANCHE = np.uint64(0x165667B19E3779F9)
NEXT_PROBE = np.uint64(0x9E3779B9)
KEY_BYTES_U = np.uint64(10)


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
def hash_user_key(key_hash: Any, feature: Any) -> Any:
    """The hash of a key: the key hash and the feature, big-endian."""
    first = swap_bytes(key_hash)  # the eight bytes as a little-endian number
    last = (first >> np.uint64(16)) | (
        (((np.uint64(feature) >> np.uint64(8)) | (np.uint64(feature) << np.uint64(8))) & np.uint64(0xFFFF))
        << np.uint64(48)
    )
    low, high = first ^ SECRET_0, last ^ SECRET_8
    hashed = KEY_BYTES_U + (low + high) + ((low * high) ^ multiply_high(low, high))
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


KEY_BYTES, INTERNAL_KEY_BYTES = 10, 18
VALUE_KIND = 1  # an entry that is a value; deletions and others are for RocksDB
NOT_FOUND, FOUND, UNSURE = 0, 1, 2


@njit(nogil=True, cache=True)
def read_varint(address: Any, end: Any) -> Any:
    """A varint of up to 63 bits and the address after it; the address is 0 if it is cut short."""
    value, shift = np.uint64(0), np.uint64(0)
    while address < end and shift < np.uint64(63):
        byte = np.uint64(read_uint8(address, 0))
        address += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value), address
        shift += np.uint64(7)
    return np.int64(0), np.int64(0)


@njit(nogil=True, cache=True)
def entries_end(address: Any, num_bytes: Any) -> Any:
    """Where a block's entries end, and how many whole keys its end lists; (0, 0) if that contradicts its size."""
    if num_bytes < 8:
        return np.int64(0), np.int64(0)
    packed = np.int64(read_uint32(address + num_bytes - 4, 0))
    num_restarts, end = packed & 0x7FFFFFFF, num_bytes - 4
    if packed >> 31:  # a hash table of the keys, which is not used here
        end -= 2
        end -= np.int64(read_uint16(address + end, 0))
    end -= 4 * num_restarts
    if end < 0 or num_restarts < 1:
        return np.int64(0), np.int64(0)
    return end, num_restarts


@njit(nogil=True, cache=True)
def parse_index(address: Any, num_bytes: Any, separators_B: Any, offsets_B1: Any) -> Any:
    """Read an index whose keys are all whole: the separators' first eight bytes, and where blocks begin and end.

    Return the number of blocks; -1 if there are more than the arrays hold, or something is not as expected.
    """
    end, _ = entries_end(address, num_bytes)
    at, limit, b = address, address + end, 0
    while at < limit:
        shared, at = read_varint(at, limit)
        if at == 0 or shared != 0:
            return -1
        length, at = read_varint(at, limit)
        if at == 0 or length < 1 or length > KEY_BYTES or at + length > limit or b >= len(separators_B):
            return -1
        separator = np.uint64(0)
        for i in range(8):
            byte = np.uint64(read_uint8(at, i)) if i < length else np.uint64(0)
            separator = (separator << np.uint64(8)) | byte
        at += length
        offset, at = read_varint(at, limit)
        if at == 0:
            return -1
        size, at = read_varint(at, limit)
        if at == 0 or (b > 0 and offsets_B1[b] != offset) or (b > 0 and separator < separators_B[b - 1]):
            return -1
        separators_B[b], offsets_B1[b] = separator, offset
        b += 1
        offsets_B1[b] = offset + size + 5  # a byte of its kind, four of its checksum
    return b


@njit(nogil=True, cache=True)
def _whole_key(at: Any, limit: Any, key_hash: Any, feature: Any) -> Any:
    """Compare the whole key of an entry with a key: -1, 0, 1 as it is below, equal or above; 2 if it is malformed."""
    shared, at = read_varint(at, limit)
    if at == 0 or shared != 0:
        return 2
    length, at = read_varint(at, limit)
    if at == 0 or length != INTERNAL_KEY_BYTES:
        return 2
    _, at = read_varint(at, limit)
    if at == 0 or at + INTERNAL_KEY_BYTES > limit:
        return 2
    found = swap_bytes(read_uint64(at, 0))
    if found != key_hash:
        return -1 if found < key_hash else 1
    there = (np.int64(read_uint8(at, 8)) << 8) | np.int64(read_uint8(at, 9))
    return 0 if there == feature else (-1 if there < feature else 1)


@njit(nogil=True, cache=True)
def find_in_block(address: Any, num_bytes: Any, key_hash: Any, feature: Any) -> Any:
    """Return (NOT_FOUND, FOUND or UNSURE, address of the value, its length). Reads nothing outside the block."""
    end, num_restarts = entries_end(address, num_bytes)
    if end == 0:
        return UNSURE, np.int64(0), np.int64(0)
    limit, restarts = address + end, address + end
    low, high = 0, num_restarts - 1  # the last whole key that is not above the key
    while low < high:
        middle = (low + high + 1) >> 1
        place = np.int64(read_uint32(restarts, middle))
        if place >= end:
            return UNSURE, np.int64(0), np.int64(0)
        order = _whole_key(address + place, limit, key_hash, feature)
        if order == 2:
            return UNSURE, np.int64(0), np.int64(0)
        if order <= 0:
            low = middle
        else:
            high = middle - 1
    place = np.int64(read_uint32(restarts, low))
    if place >= end:
        return UNSURE, np.int64(0), np.int64(0)
    at = address + place
    found, there = np.uint64(0), np.int64(0)
    while at < limit:
        shared, at = read_varint(at, limit)
        if at == 0:
            return UNSURE, np.int64(0), np.int64(0)
        rest, at = read_varint(at, limit)
        if at == 0:
            return UNSURE, np.int64(0), np.int64(0)
        length, at = read_varint(at, limit)
        # the last eight bytes hold kind and sequence, so a key that shares more than ten has the same user key
        if at == 0 or shared > KEY_BYTES or shared + rest != INTERNAL_KEY_BYTES or at + rest + length > limit:
            return UNSURE, np.int64(0), np.int64(0)
        if shared == 0:
            found = swap_bytes(read_uint64(at, 0))
        elif shared < 8:
            bits = np.uint64(8 * shared)
            kept = found & ~(~np.uint64(0) >> bits)
            found = kept | (swap_bytes(read_uint64(at, 0)) >> bits)
        if shared <= 8:
            there = (np.int64(read_uint8(at, 8 - shared)) << 8) | np.int64(read_uint8(at, 9 - shared))
        elif shared == 9:
            there = (there & 0xFF00) | np.int64(read_uint8(at, 0))
        if found > key_hash or (found == key_hash and there > feature):
            return NOT_FOUND, np.int64(0), np.int64(0)
        if found == key_hash and there == feature:
            if read_uint8(at, rest - 8) != VALUE_KIND:
                return UNSURE, np.int64(0), np.int64(0)
            return FOUND, at + rest, length
        at += rest + length
    return NOT_FOUND, np.int64(0), np.int64(0)
