"""Parses the record batches of a fetch into arrays, without a Python object per record.

Format: Kafka's record batch v2 (KIP-98): a header of 61 bytes, big-endian; records of zig-zag varints, which may be
compressed as a whole. Batches of the formats 0 and 1 are read by kafka-python's own record classes. Knows no
connection.
"""

# B batches, N records
import struct
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.columns import RawRecords
from springtide.stream.compression import CODEC_NAMES, MAX_BATCH_BYTES, decompress
from springtide.stream.errors import BatchTooLargeError, CorruptBatchError, StreamError, UnknownCodecError
from springtide.stream.kafka.library import kafka
from springtide.stream.positions import Partition

HEADER_BYTES = 61
CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
SMALLEST_LEGACY_BYTES = 14
# offset, length, leader epoch, magic: at the same place in every format
LEGACY_HEADER_BYTES = 17
SMALLEST_RECORD_BYTES = 7
CHUNK_BYTES = 2 << 20


class RecordBatchParser:
    """Parses the bytes of one fetch into RawRecords, batch by batch."""

    def __init__(
        self,
        partition: Partition,
        fetch_offset: int,
        *,
        aborted: Callable[[Any], bool],
        max_batch_bytes: int = MAX_BATCH_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """`aborted(batch)` returns True if a transactional batch was aborted and is to be skipped.

        A compressed batch may hold `max_batch_bytes`; decompressed batches are yielded once they exceed `chunk_bytes`.
        """
        self.partition = partition
        self.next_offset = fetch_offset
        self.leader_epoch = -1
        self.aborted = aborted
        self.max_batch_bytes, self.chunk_bytes = max_batch_bytes, chunk_bytes

    def parse_fetch(self, buffer: bytes) -> Iterator[RawRecords]:
        """Yield the records at and after next_offset, which is moved past them before each yield.

        Raises CorruptBatchError, UnknownCodecError or BatchTooLargeError, after everything before that batch has been
        yielded. A last batch that is cut short is ignored: the next fetch returns it whole.
        """
        plain: list[tuple[int, int, int]] = []  # start, end, number of records: in the fetched bytes
        expanded: list[bytes] = []  # headers and decompressed records, by turns; never beside `plain`

        def flush() -> Iterator[RawRecords]:
            if plain:
                yield self._parse_plain(buffer, plain)
                plain.clear()
            if expanded:
                parts = expanded.copy()
                expanded.clear()
                yield self._parse_expanded(parts)

        position = 0
        while position + LEGACY_HEADER_BYTES <= len(buffer):
            length = struct.unpack_from(">i", buffer, position + 8)[0]
            end = position + 12 + length
            if end > len(buffer):
                break
            batch_bytes = memoryview(buffer)[position:end]
            try:
                kind = self._classify(buffer, position, end)
                if kind in ("transactional", "control"):
                    kind = self._resolve_transaction(batch_bytes)
                records = self._decompress(batch_bytes) if kind == "compressed" else b""
            except StreamError:
                yield from flush()
                raise
            if kind == "plain":
                if expanded:
                    yield from flush()
                plain.append((position, end, struct.unpack_from(">i", buffer, position + 57)[0]))
            elif kind == "compressed":
                if plain:
                    yield from flush()
                expanded += [bytes(batch_bytes[:HEADER_BYTES]), records]
                if sum(map(len, expanded)) > self.chunk_bytes:
                    yield from flush()
            else:
                yield from flush()
                yield self._parse_legacy(batch_bytes) if kind == "legacy" else self._skip(batch_bytes)
            position = end
        yield from flush()

    def _classify(self, buffer: bytes, position: int, end: int) -> str:
        """Check a batch and return what it is: "plain", "compressed", "transactional", "control" or "legacy"."""
        base_offset, length, epoch, magic = struct.unpack_from(">qiib", buffer, position)
        if magic in (0, 1) and length >= SMALLEST_LEGACY_BYTES:
            return "legacy"
        if magic != 2 or end - position < HEADER_BYTES:
            raise CorruptBatchError(f"{self.partition}: the bytes at offset {base_offset} are not a record batch")
        crc, attributes = struct.unpack_from(">Ih", buffer, position + 17)
        if crc32c.crc32c(memoryview(buffer)[position + 21 : end]) != crc:
            raise CorruptBatchError(f"{self.partition}: the batch at offset {base_offset} does not match its checksum")
        self.leader_epoch = epoch
        if attributes & CONTROL:
            return "control"
        if attributes & TRANSACTIONAL:
            return "transactional"
        return "compressed" if attributes & CODEC_MASK else "plain"

    def _resolve_transaction(self, batch_bytes: memoryview) -> str:
        """Return what a batch of a transaction is: "skipped" if it is aborted or a marker, "plain" or "compressed"."""
        batch = kafka.record.default_records.DefaultRecordBatch(batch_bytes)
        if self.aborted(batch) or batch.is_control_batch:
            return "skipped"
        return "compressed" if batch.compression_type else "plain"

    def _decompress(self, batch_bytes: memoryview) -> bytes:
        """The records of a compressed batch."""
        base_offset = struct.unpack_from(">q", batch_bytes)[0]
        codec = struct.unpack_from(">h", batch_bytes, 21)[0] & CODEC_MASK
        if codec not in CODEC_NAMES:
            raise UnknownCodecError(
                f"{self.partition}: the batch at offset {base_offset} is compressed with the unknown codec {codec}: "
                f"let the producer use {', '.join(CODEC_NAMES.values())}"
            )
        try:
            return decompress(CODEC_NAMES[codec], batch_bytes[HEADER_BYTES:], max_bytes=self.max_batch_bytes)
        except (CorruptBatchError, BatchTooLargeError) as error:
            raise type(error)(f"{self.partition} at offset {base_offset}: {error}") from None

    def _parse_legacy(self, batch_bytes: memoryview) -> RawRecords:
        """Parse a batch of the formats 0 and 1 with kafka-python's record classes."""
        batch = kafka.record.legacy_records.LegacyRecordBatch(batch_bytes, batch_bytes[16])
        if not batch.validate_crc():
            raise CorruptBatchError(f"{self.partition}: a batch after {self.next_offset} does not match its checksum")
        records = [record for record in batch if record.offset >= self.next_offset]
        self.next_offset = records[-1].offset + 1 if records else self.next_offset
        return records_from_objects(self.partition, records, self.next_offset)

    def _parse_expanded(self, parts: list[bytes]) -> RawRecords:
        """Parse batches whose records have been decompressed; `parts` are headers and records by turns."""
        ends = list(accumulate(map(len, parts)))
        batches = [
            (ends[i] - HEADER_BYTES, ends[i + 1], struct.unpack_from(">i", parts[i], 57)[0])
            for i in range(0, len(parts), 2)
        ]
        return self._parse_plain(b"".join(parts), batches)

    def _parse_plain(self, buffer: bytes, batches: list[tuple[int, int, int]]) -> RawRecords:
        """Parse v2 batches of one buffer, whose records are not compressed there, with compiled code."""
        capacity = sum(min(max(count, 0), (end - start) // SMALLEST_RECORD_BYTES) for start, end, count in batches)
        columns_6N = np.empty((6, capacity), np.int64)
        bounds_B2 = np.array([(start, end) for start, end, _ in batches], np.int64)
        num_records, end_offset = parse_batches(
            np.frombuffer(buffer, np.uint8), bounds_B2, self.next_offset, columns_6N
        )
        if num_records < 0:
            raise CorruptBatchError(f"{self.partition}: a record batch after {self.next_offset} contradicts itself")
        self.next_offset = max(end_offset, self.next_offset)
        value_start, value_length, key_start, key_length, record_ms, offset = columns_6N[:, :num_records]
        return RawRecords(
            partition=self.partition,
            buffer=buffer,
            value_start_N=value_start,
            value_length_N=value_length,
            key_start_N=key_start,
            key_length_N=key_length,
            record_ms_N=record_ms,
            offset_N=offset,
            end=self.next_offset,
            has_headers=True,
        )

    def _skip(self, batch_bytes: memoryview) -> RawRecords:
        """No records, only an offset to move to: after this batch."""
        base_offset, last_delta = struct.unpack_from(">q", batch_bytes)[0], struct.unpack_from(">i", batch_bytes, 23)[0]
        self.next_offset = max(base_offset + last_delta + 1, self.next_offset)
        return records_from_objects(self.partition, [], self.next_offset)


def records_from_objects(partition: Partition, records: list[Any], end: int) -> RawRecords:
    """Convert kafka-python's record objects to RawRecords; a record without a timestamp gets -1."""
    headers = [record.headers or [] for record in records]
    return RawRecords.from_messages(
        partition,
        [None if record.value is None else bytes(record.value) for record in records],
        keys=[None if record.key is None else bytes(record.key) for record in records],
        record_ms=[-1 if record.timestamp is None else record.timestamp for record in records],
        offsets=[record.offset for record in records],
        end=end,
        headers=headers if any(headers) else None,
    )


def _read_varint(buffer: npt.NDArray[np.uint8], position: int, end: int) -> Any:
    """Read a zig-zag varint: (value, position after it); a position of -1 if it runs over the end."""
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
    """Write where each record at or after first_offset lies; return (number of records, offset after the last batch).

    The rows of `out_6N`: value start, value length, key start, key length, timestamp in ms, offset. Returns (-1, 0)
    if a length leads outside its batch: nothing outside the bounds is ever read.
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
        # also where compaction removed every record: otherwise the batch would be fetched for ever
        end_offset = max(end_offset, base_offset + big_endian(buffer, start + 23, 4) + 1)
    return n, end_offset


read_varint = njit(nogil=True, cache=True, inline="always")(_read_varint)
big_endian = njit(nogil=True, cache=True, inline="always")(_big_endian)
parse_batches = njit(nogil=True, cache=True)(_parse_batches)
