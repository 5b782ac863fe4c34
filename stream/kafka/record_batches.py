"""Record batches straight from a fetch to arrays: kafka-python's record objects are never made.

Formats: Kafka's record batch v2 (KIP-98). Compressed batches are unpacked, and batches of formats 0 and 1 read, by
kafka-python's own record classes. Knows no connection; the consumer hands the fetched bytes over.
"""

# N records
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np

from stream.errors import CodecMissingError, CorruptBatchError, StreamError
from stream.kafka.library import kafka
from stream.kafka.raw_parse import HEADER_BYTES, parse_batches
from stream.positions import Partition
from stream.records import RawRecords

CODEC_MASK, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20
SMALLEST_LEGACY_BYTES = 14
CODECS = {
    2: ("snappy", "has_snappy", "python-snappy"),
    3: ("lz4", "has_lz4", "lz4"),
    4: ("zstd", "has_zstd", "zstandard"),
}
# offset, length, leader epoch, magic: the same place in every format
LEGACY_HEADER_BYTES = 17
SMALLEST_RECORD_BYTES = 7


@dataclass
class RawBatch:
    """What the consumer believes to be one record: it looks at the offset only."""

    offset: int
    raw: RawRecords


class RecordBatchParser:
    """Cuts the bytes of one fetch into raw records, batch by batch."""

    def __init__(self, partition: Partition, fetch_offset: int, *, aborted: Callable[[Any], bool]) -> None:
        """`aborted(batch)` tells whether a transactional batch is not to be read."""
        self.partition = partition
        self.next_offset = fetch_offset
        self.leader_epoch = -1
        self.aborted = aborted

    def parse_fetch(self, buffer: bytes) -> Iterator[RawRecords]:
        """Raw records at and after next_offset; moves it before each. CorruptBatchError, CodecMissingError.

        What stands before a broken batch is handed out first. A last batch that is cut short is not looked at.
        """
        plain: list[tuple[int, int, int]] = []  # start, end, number of records
        position = 0
        while position + LEGACY_HEADER_BYTES <= len(buffer):
            length = struct.unpack_from(">i", buffer, position + 8)[0]
            end = position + 12 + length
            if end > len(buffer):
                break
            try:
                kind = self.kind(buffer, position, end)
            except StreamError:
                if plain:
                    yield self.parse(buffer, plain)
                raise
            if kind == "plain":
                plain.append((position, end, struct.unpack_from(">i", buffer, position + 57)[0]))
            else:
                if plain:
                    yield self.parse(buffer, plain)
                    plain = []
                yield self.unpack_slowly(memoryview(buffer)[position:end], kind)
            position = end
        if plain:
            yield self.parse(buffer, plain)

    def kind(self, buffer: bytes, position: int, end: int) -> str:
        """How to read the batch; one that cannot be read raises."""
        base_offset, length, epoch, magic = struct.unpack_from(">qiib", buffer, position)
        if magic in (0, 1) and length >= SMALLEST_LEGACY_BYTES:
            return "legacy"
        if magic != 2 or end - position < HEADER_BYTES:
            raise CorruptBatchError(f"{self.partition}: what stands at offset {base_offset} is no record batch")
        crc, attributes = struct.unpack_from(">Ih", buffer, position + 17)
        if crc32c.crc32c(memoryview(buffer)[position + 21 : end]) != crc:
            raise CorruptBatchError(f"{self.partition}: the batch at offset {base_offset} does not match its checksum")
        self.leader_epoch = epoch
        require_codec(attributes & CODEC_MASK, self.partition)
        if attributes & CONTROL:
            return "control"
        if attributes & TRANSACTIONAL:
            return "transactional"
        return "compressed" if attributes & CODEC_MASK else "plain"

    def unpack_slowly(self, batch_bytes: memoryview, kind: str) -> RawRecords:
        """A batch that only kafka-python's record classes read."""
        if kind == "legacy":
            batch = kafka.record.legacy_records.LegacyRecordBatch(batch_bytes, batch_bytes[16])
            if not batch.validate_crc():
                raise CorruptBatchError(
                    f"{self.partition}: a batch after {self.next_offset} does not match its checksum"
                )
            return self.objects(batch, None)
        batch = kafka.record.default_records.DefaultRecordBatch(batch_bytes)
        if self.aborted(batch) or kind == "control":
            return self.skip(batch.next_offset)
        return self.objects(batch, batch.next_offset)

    def parse(self, buffer: bytes, batches: list[tuple[int, int, int]]) -> RawRecords:
        """Uncompressed v2 batches that lie in one buffer."""
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
        )

    def objects(self, batch: Any, end_offset: int | None) -> RawRecords:
        """Any batch by kafka-python's record objects; end_offset None = after the last record."""
        try:
            records = [record for record in batch if record.offset >= self.next_offset]
        except kafka.errors.UnsupportedCodecError as error:
            raise CodecMissingError(f"{self.partition}: {error}; install the codec's library") from None
        if end_offset is None:
            end_offset = records[-1].offset + 1 if records else self.next_offset
        self.next_offset = max(end_offset, self.next_offset)
        return records_from_objects(self.partition, records, self.next_offset)

    def skip(self, end_offset: int) -> RawRecords:
        """No record, but a position to move to."""
        self.next_offset = max(end_offset, self.next_offset)
        return records_from_objects(self.partition, [], self.next_offset)


def records_from_objects(partition: Partition, records: list[Any], end: int) -> RawRecords:
    """kafka-python's record objects as raw records."""
    return RawRecords.from_messages(
        partition,
        [None if record.value is None else bytes(record.value) for record in records],
        keys=[None if record.key is None else bytes(record.key) for record in records],
        record_ms=[-1 if record.timestamp is None else record.timestamp for record in records],
        offsets=[record.offset for record in records],
        end=end,
    )


def require_codec(codec: int, partition: Partition) -> None:
    """CodecMissingError, with the package to install, where a batch cannot be unpacked."""
    if codec in CODECS:
        name, has, package = CODECS[codec]
        if not getattr(kafka.codec, has)():
            raise CodecMissingError(
                f"{partition} holds records compressed with {name}: pip install {package}, or let the producer use gzip"
            )


def supports_raw_fetch(consumer: Any) -> bool:
    """Whether this kafka-python still has the private names that tap() relies on."""
    records = getattr(getattr(consumer, "_fetcher", None), "PartitionRecords", None)
    return records is not None and all(
        hasattr(records, name)
        for name in ("_unpack_records", "drain", "_consume_aborted_transactions_up_to", "_is_batch_aborted")
    )


def install_raw_fetch(consumer: Any) -> None:
    """Let this consumer's poll() return Blobs, one or a few a fetch, in place of record objects.

    Only the instance is changed. `max_poll_records` then counts blobs.
    """
    parent: Any = consumer._fetcher.PartitionRecords
    read_committed = kafka.consumer.fetcher.IsolationLevel.READ_COMMITTED

    class PartitionRecords(parent):  # type: ignore[misc]
        def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[RawBatch]:
            def aborted(batch: Any) -> bool:
                if self.isolation_level != read_committed or not batch.has_producer_id():
                    return False
                self._consume_aborted_transactions_up_to(batch.last_offset)
                if self._contains_abort_marker(batch):
                    self.aborted_producer_ids.discard(batch.producer_id)
                    return False
                return bool(self._is_batch_aborted(batch))

            unpacker = RecordBatchParser(Partition(tp.topic, tp.partition), self.fetch_offset, aborted=aborted)
            for raw in unpacker.parse_fetch(bytes(records._buffer)):
                # the consumer copies both into its position once it has taken the blob
                self.next_fetch_offset = unpacker.next_offset
                self.leader_epoch = unpacker.leader_epoch
                self.records_read += len(raw)
                self.bytes_read += len(raw.buffer)
                yield RawBatch(unpacker.next_offset, raw)
            self.drain()

    consumer._fetcher.PartitionRecords = PartitionRecords
