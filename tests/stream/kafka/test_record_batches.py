"""The bytes of a fetch, built by kafka-python's own writer and broken by hand."""

import struct

import crc32c
import pytest

from springtide.stream.compression import compress
from springtide.stream.errors import BatchTooLargeError, CorruptBatchError, UnknownCodecError
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.record_batches import RecordBatchParser
from springtide.stream.positions import Partition

HERE = Partition("clicks", 0)
RECORDS = [
    (b"k0", b'{"a": 1}', []),
    (None, None, [("h", b"1")]),
    (b"", b"", [("reason", None)]),
    (b"k3", b"x" * 3000, []),
    (None, b"\x00\xff", []),
]


def batch(records=RECORDS, *, base=0, codec=0, magic=2, start_ms=1_700_000_000_000, **options):
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic, codec, 1 << 24, **options)
    for number, (key, value, headers) in enumerate(records):
        builder.append(start_ms + 7 * number, key, value, headers)
    builder.close()
    content = bytearray(builder.buffer())
    content[:8] = struct.pack(">q", base)
    return bytes(content)


def reseal(content):
    """The batch with a checksum that fits."""
    return content[:17] + struct.pack(">I", crc32c.crc32c(content[21:])) + content[21:]


def unpack(content, offset=0, aborted=lambda batch: False):
    unpacker = RecordBatchParser(HERE, offset, aborted=aborted)
    found = []
    for raw in unpacker.parse_fetch(content):
        assert raw.end == unpacker.next_offset
        found += [
            (int(raw.offset_N[n]), raw.key(n), raw.value(n), int(raw.record_ms_N[n]) - 1_700_000_000_000)
            for n in range(len(raw))
        ]
    return found, unpacker.next_offset


def expected(base=0, records=RECORDS):
    return [(base + n, key, value, 7 * n) for n, (key, value, _) in enumerate(records)]


def test_keys_values_nulls_and_timestamps_are_those_written():
    assert unpack(batch()) == (expected(), 5)


def test_batches_are_parsed_in_order_and_a_truncated_last_one_is_left():
    content = batch() + batch(base=5) + batch(base=10)[:-1]
    assert unpack(content) == (expected() + expected(5), 10)
    assert unpack(content[:10]) == ([], 0)
    assert unpack(b"") == ([], 0)


def test_reading_begins_inside_a_batch():
    assert unpack(batch() + batch(base=5), offset=7) == (expected(5)[2:], 10)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_compressed_batches_between_plain_ones_keep_their_place(codec):
    content = batch() + batch(base=5, codec=codec) + batch(base=10)
    assert unpack(content, offset=6) == ((expected(5) + expected(10))[1:], 15)


def test_an_unknown_codec_is_refused_after_the_batches_before():
    compressed = bytearray(batch(base=5))
    compressed[21:23] = struct.pack(">h", 5)
    unpacker = RecordBatchParser(HERE, 0, aborted=lambda batch: False)
    found = unpacker.parse_fetch(batch() + reseal(bytes(compressed)))
    assert len(next(found)) == 5
    with pytest.raises(UnknownCodecError, match="unknown codec 5: let the producer use gzip, snappy, lz4, zstd"):
        next(found)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_compressed_batch_that_cannot_be_decompressed_is_corrupt(codec):
    good = batch(codec=codec)
    assert good[22] == codec
    length = struct.unpack_from(">i", good, 8)[0]
    cut_short = reseal(good[:8] + struct.pack(">i", length - 9) + good[12:-9])
    unpacker = RecordBatchParser(HERE, 0, aborted=lambda batch: False)
    found = unpacker.parse_fetch(batch() + cut_short)
    assert len(next(found)) == 5
    with pytest.raises(CorruptBatchError, match=r"clicks/0 at offset 0: .*cannot be decompressed"):
        next(found)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_every_byte_of_compressed_records_may_lie(codec):
    good = batch(codec=codec)
    for position in range(61, len(good)):
        broken = bytearray(good)
        broken[position] ^= 0x5A
        try:
            found, _ = unpack(reseal(bytes(broken)))
        except (CorruptBatchError, BatchTooLargeError):
            continue
        assert len(found) <= 5


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_holds_too_much_is_refused_before_it_is_decompressed(codec):
    bomb = batch([(None, bytes(8 << 20), [])], codec=codec)
    assert len(bomb) < 1 << 19
    unpacker = RecordBatchParser(HERE, 0, aborted=lambda batch: False, max_batch_bytes=1 << 20)
    with pytest.raises(BatchTooLargeError, match="holds more than 1 MiB"):
        list(unpacker.parse_fetch(bomb))


def test_many_batches_that_hold_much_are_yielded_in_chunks():
    content = b"".join(batch([(None, bytes(1 << 20), [])], base=n, codec=4) for n in range(8))
    unpacker = RecordBatchParser(HERE, 0, aborted=lambda batch: False, chunk_bytes=2 << 20)
    assert [len(raw) for raw in unpacker.parse_fetch(content)] == [2, 2, 2, 2]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_transactional_batches_are_read_unless_aborted(codec):
    content = batch(base=5, codec=codec)
    transactional = reseal(content[:21] + struct.pack(">h", 0x10 | codec) + content[23:])
    content = batch() + transactional + batch(base=10)
    assert unpack(content) == (expected() + expected(5) + expected(10), 15)
    assert unpack(content, aborted=lambda b: b.is_transactional) == (expected() + expected(10), 15)


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_read(magic, codec, monkeypatch):
    def with_wrong_checksum(data):
        content = compress("lz4", data)
        return content[:6] + b"\x00" + content[7:]

    monkeypatch.setattr(kafka.record.legacy_records, "lz4_encode_old_kafka", with_wrong_checksum)
    records = [(key, value, []) for key, value, _ in RECORDS]
    found, end = unpack(batch(records, magic=magic, codec=codec))
    assert [(key, value) for _, key, value, _ in found] == [(key, value) for key, value, _ in records]
    assert end == 5


def test_a_batch_emptied_by_compaction_moves_the_position_on():
    emptied = bytearray(batch(base=5)[:61])
    emptied[8:12] = struct.pack(">i", 61 - 12)
    emptied[57:61] = struct.pack(">i", 0)
    content = batch() + reseal(bytes(emptied)) + batch(base=20)
    assert unpack(content) == (expected() + expected(20), 25)
    assert unpack(reseal(bytes(emptied)), offset=5) == ([], 10)


def test_compacted_records_leave_gaps():
    builder = kafka.record.default_records.DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset in (0, 3, 9):
        builder.append(offset, 1_700_000_000_000, b"k", b"%d" % offset, [])
    found, end = unpack(bytes(builder.build()))
    assert [offset for offset, *_ in found] == [0, 3, 9]
    assert end == 10


def test_control_and_aborted_batches_are_skipped():
    def with_attributes(content, attributes):
        return reseal(content[:21] + struct.pack(">h", attributes) + content[23:])

    control, aborted = with_attributes(batch(base=5), 0x30), with_attributes(batch(base=10), 0x10)
    content = batch() + control + aborted + batch(base=15)
    found, end = unpack(content, aborted=lambda b: b.base_offset == 10)
    assert found == expected() + expected(15)
    assert end == 20
    assert unpack(content)[0] == expected() + expected(10) + expected(15)


def test_log_append_time_is_used_where_the_broker_sets_it():
    content = batch()
    stamped = reseal(content[:21] + struct.pack(">h", 0x08) + content[23:])
    assert {record_ms for *_, record_ms in unpack(stamped)[0]} == {28}


def test_every_flipped_byte_is_detected():
    good = batch(RECORDS[:3])
    for position in range(16, len(good)):
        broken = bytearray(good)
        broken[position] ^= 0x55
        with pytest.raises(CorruptBatchError, match=r"checksum|not a record batch"):
            unpack(bytes(broken))


def test_the_batches_before_a_corrupt_one_are_returned_first():
    broken = bytearray(batch(base=5))
    broken[-1] ^= 1
    unpacker = RecordBatchParser(HERE, 0, aborted=lambda batch: False)
    found = unpacker.parse_fetch(batch() + bytes(broken))
    assert len(next(found)) == 5
    with pytest.raises(CorruptBatchError):
        next(found)
    assert unpacker.next_offset == 5


def test_lengths_that_lead_outside_the_batch_are_refused():
    good = batch(RECORDS[:3])
    for position in range(57, len(good)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            lying = bytearray(good)
            lying[position] = byte
            try:
                found, _ = unpack(reseal(bytes(lying)))
            except CorruptBatchError:
                continue
            assert len(found) <= 3
