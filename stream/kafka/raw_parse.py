"""Record batches v2 to offsets and lengths, compiled. Reads nothing outside the bounds it is given.

Format: Kafka's record batch v2 (KIP-98): a header of 61 bytes, big-endian; records of zig-zag varints.
"""

# B batches, N records
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

HEADER_BYTES = 61
LOG_APPEND_TIME = 0x08


def _read_varint(buffer: npt.NDArray[np.uint8], position: int, end: int) -> Any:
    """A zig-zag varint: (value, position after it); position -1 where it runs over the end."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(64):
        byte = buffer[position]
        position += 1
        value |= np.uint64(byte & np.uint8(0x7F)) << shift
        if byte < np.uint8(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


def _big_endian(buffer: npt.NDArray[np.uint8], position: int, num_bytes: int) -> Any:
    value = np.uint64(0)
    for i in range(num_bytes):
        value = (value << np.uint64(8)) | np.uint64(buffer[position + i])
    return np.int64(value)


def _parse_batches(
    buffer: npt.NDArray[np.uint8], bounds_B2: npt.NDArray[np.int64], first_offset: int, out_6N: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Where each record at or after first_offset stands; (number of records, offset after the last batch).

    (-1, 0) where a length leads outside its batch: nothing outside the bounds is ever read.
    """
    n = 0
    end_offset = first_offset
    capacity = out_6N.shape[1]
    for b in range(bounds_B2.shape[0]):
        start, end = bounds_B2[b, 0], bounds_B2[b, 1]
        base_offset = big_endian(buffer, start, 8)
        log_append_time = buffer[start + 22] & np.uint8(LOG_APPEND_TIME)
        base_ms = big_endian(buffer, start + 27, 8)
        max_ms = big_endian(buffer, start + 35, 8)
        count = big_endian(buffer, start + 57, 4)
        position = start + HEADER_BYTES
        for _ in range(count):
            length, position = read_varint(buffer, position, end)
            if position < 0 or length < 0 or position + length > end:
                return -1, 0
            record_end = position + length
            delta_ms, position = read_varint(buffer, position + 1, record_end)
            if position < 0:
                return -1, 0
            delta_offset, position = read_varint(buffer, position, record_end)
            if position < 0:
                return -1, 0
            key_length, position = read_varint(buffer, position, record_end)
            if position < 0 or key_length < -1 or key_length > record_end - position:
                return -1, 0
            key_start = position
            value_length, position = read_varint(buffer, position + max(key_length, 0), record_end)
            if position < 0 or value_length < -1 or value_length > record_end - position:
                return -1, 0
            offset = base_offset + delta_offset
            if offset >= first_offset:
                if n >= capacity:
                    return -1, 0
                out_6N[0, n] = position
                out_6N[1, n] = value_length
                out_6N[2, n] = key_start
                out_6N[3, n] = key_length
                out_6N[4, n] = max_ms if log_append_time else base_ms + delta_ms
                out_6N[5, n] = offset
                n += 1
            position = record_end
        # also where compaction took every record: else the batch is fetched for ever
        end_offset = max(end_offset, base_offset + big_endian(buffer, start + 23, 4) + 1)
    return n, end_offset


read_varint = numba.njit(nogil=True, cache=True, inline="always")(_read_varint)
big_endian = numba.njit(nogil=True, cache=True, inline="always")(_big_endian)
parse_batches = numba.njit(nogil=True, cache=True)(_parse_batches)
