"""The blocks of a RocksDB table: the index as arrays, and one key in a block of rows.

Source: RocksDB's block-based table format. Entries hold the bytes shared with the key before, the key's rest and the
value; every 16th key is whole and is listed at the block's end. A key has ten bytes and eight more: kind and sequence.
"""

from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.memory import read_uint8, read_uint16, read_uint32, read_uint64
from springtide.kernels.cpu.table_file.filters import swap_bytes

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
def _whole_key(at: Any, limit: Any, mixed: Any, feature: Any) -> Any:
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
    if found != mixed:
        return -1 if found < mixed else 1
    there = (np.int64(read_uint8(at, 8)) << 8) | np.int64(read_uint8(at, 9))
    return 0 if there == feature else (-1 if there < feature else 1)


@njit(nogil=True, cache=True)
def find_in_block(address: Any, num_bytes: Any, mixed: Any, feature: Any) -> Any:
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
        order = _whole_key(address + place, limit, mixed, feature)
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
        if found > mixed or (found == mixed and there > feature):
            return NOT_FOUND, np.int64(0), np.int64(0)
        if found == mixed and there == feature:
            if read_uint8(at, rest - 8) != VALUE_KIND:
                return UNSURE, np.int64(0), np.int64(0)
            return FOUND, at + rest, length
        at += rest + length
    return NOT_FOUND, np.int64(0), np.int64(0)
