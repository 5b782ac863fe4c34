"""Keys and headers of records as ids: from fetched bytes and polled objects, in every format, from real brokers."""

import io
import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from springtide.stream.columns import Columns, RawRecords
from springtide.stream.config import SourceConfig
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.producer import Producer
from springtide.stream.kafka.record_batches import RecordBatchParser, records_from_objects
from springtide.stream.positions import Partition
from springtide.stream.source import KafkaSource
from springtide_client.keys import MISSING_ID, encode_id
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms
from tests.support.waiting import wait_until

SCHEMA = Schema(labels=("click",), categorical=("key", "user", "header:device"))
FIELDS = ("key", "header:device")
CLICKS = Partition("clicks", 0)
NOW_MS = 1_700_000_000_000
Header = tuple[str, bytes | None]
# key, headers; and which ids they are
RECORDS: list[tuple[bytes | None, list[Header], Any, Any]] = [
    (b"7", [("device", b"phone")], 7, "phone"),
    (None, [], None, None),
    ("käse".encode(), [("device", b"a"), ("other", b"x"), ("device", b"tv")], "käse", "tv"),
    (b"", [("device", None)], "", None),
    (b"-12", [("device", b"007"), ("devices", b"no")], -12, "007"),
    (b"x" * 300, [("device", b"y" * 200)], "x" * 300, "y" * 200),
    (b"k", [("device", b"a"), ("device", None)], "k", None),
]
IDS = [[encode_id(value)[0] for value in (key, n, device)] for n, (_, _, key, device) in enumerate(RECORDS)]


def message(n: int) -> bytes:
    # what the message says of these names is another matter
    return json.dumps({"click": 1, "user": n, "key": {"no": "id"}, "header:device": "from the message"}).encode()


def batch(records: list[tuple[bytes | None, list[Header], Any, Any]], codec: int = 0, magic: int = 2) -> bytes:
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic, codec, 1 << 24)
    for n, (key, headers, *_) in enumerate(records):
        builder.append(NOW_MS, key, message(n), headers)
    builder.close()
    content = bytearray(builder.buffer())
    content[:8] = struct.pack(">q", 0)
    return bytes(content)


def fetched(content: bytes) -> RawRecords:
    (raw,) = RecordBatchParser(CLICKS, 0, aborted=lambda batch: False).parse_fetch(content)
    return raw


def polled(content: bytes) -> RawRecords:
    records = list(kafka.record.default_records.DefaultRecordBatch(memoryview(content)))
    return records_from_objects(CLICKS, records, len(records))


def decode(raw: RawRecords, schema: Schema = SCHEMA, **settings: Any) -> Columns:
    return Decoder(schema, DecodeConfig(record_fields=FIELDS, **settings)).decode(raw, NOW_MS)


@pytest.mark.parametrize("read", [fetched, polled])
@pytest.mark.parametrize("codec", [0, 1])
def test_ids_are_those_of_the_same_strings_in_a_message(read, codec):
    columns = decode(read(batch(RECORDS, codec)))
    assert columns.dead_letters == ()
    assert columns.features.categorical_NC.tolist() == IDS
    strings = set(zip(columns.id_strings.features.tolist(), columns.id_strings.strings, strict=True))
    assert strings == {
        (0, "käse"),
        (0, ""),
        (0, "x" * 300),
        (0, "k"),
        (2, "phone"),
        (2, "tv"),
        (2, "007"),
        (2, "y" * 200),
    }


def test_without_the_setting_fields_of_these_names_are_the_messages():
    raw = RawRecords.from_messages(CLICKS, [b'{"click": 1, "key": "a", "header:device": 3}'], keys=[b"not this"])
    columns = Decoder(SCHEMA).decode(raw, NOW_MS)
    assert columns.features.categorical_NC.tolist() == [[encode_id("a")[0], MISSING_ID, 3]]


def test_the_slow_path_gives_the_same():
    decoder = Decoder(SCHEMA, DecodeConfig(record_fields=FIELDS))
    decoder.fast_path = None
    columns = decoder.decode(fetched(batch(RECORDS)), NOW_MS)
    assert columns.features.categorical_NC.tolist() == IDS


def test_records_of_the_older_formats_have_a_key_and_no_header():
    columns = decode(fetched(batch([(b"a", [], "a", None)], magic=1)))
    assert columns.features.categorical_NC.tolist() == [[encode_id("a")[0], 0, MISSING_ID]]


def test_bytes_that_are_no_text_make_a_dead_letter_with_its_reason():
    bad = [(b"\xff", [], 0, 0), (b"a", [("device", b"\xc3")], 0, 0), (b"b", [("other", b"\xff")], 0, 0)]
    columns = decode(fetched(batch(bad)))
    assert [letter.reason for letter in columns.dead_letters] == ["bad_record_field"] * 2
    assert [letter.detail for letter in columns.dead_letters] == [
        "key: its bytes are not UTF-8",
        "header:device: its bytes are not UTF-8",
    ]
    assert columns.dead_letters[0].key == b"\xff"
    assert columns.offset_N.tolist() == [2]


def test_headers_that_contradict_themselves_are_told_and_nothing_outside_is_read():
    raw = RawRecords.from_messages(CLICKS, [message(0)], headers=[[("device", b"phone")]])
    for cut in range(1, 14):
        broken = RawRecords.from_messages(CLICKS, [message(0)], headers=[[("device", b"phone")]])
        object.__setattr__(broken, "buffer", raw.buffer[:-cut])
        (letter,) = decode(broken).dead_letters
        assert letter.detail == "header:device: the record's headers contradict themselves"


def test_other_formats_take_them_too():
    rows = [{"click": 1, "user": n} for n in range(len(RECORDS))]
    keys, headers = [record[0] for record in RECORDS], [record[1] for record in RECORDS]
    config = DecodeConfig(format="msgpack")
    packed = [config.open_codec().from_json(json.dumps(row).encode()) for row in rows]
    raw = RawRecords.from_messages(CLICKS, packed, keys=keys, headers=headers)
    assert decode(raw, format="msgpack").features.categorical_NC.tolist() == IDS
    tables = []
    for row in rows:
        table, sink = pa.Table.from_pylist([row, row]), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        tables.append(sink.getvalue())
    raw = RawRecords.from_messages(CLICKS, tables, keys=keys, headers=headers)
    assert decode(raw, format="arrow").features.categorical_NC.tolist() == np.repeat(IDS, 2, axis=0).tolist()


def test_a_join_and_the_choice_of_negatives_may_go_by_them():
    schema = Schema(labels=("click",), categorical=("user",))
    settings = DecodeConfig(record_fields=FIELDS, sample_by=("header:device",))
    columns = Decoder(schema, settings, key=["key", "user"]).decode(fetched(batch(RECORDS)), NOW_MS)
    plain = [json.dumps({"key": key, "user": n}).encode() for n, (_, _, key, _) in enumerate(RECORDS)]
    expected = Decoder(schema, DecodeConfig(), key=["key", "user"]).decode(
        RawRecords.from_messages(CLICKS, plain), NOW_MS
    )
    assert columns.key_hash_N is not None
    # without a header there is nothing to choose by
    assert [letter.offset for letter in columns.dead_letters] == [1, 3, 6]
    assert columns.key_hash_N.tolist() == expected.key_hash_N[columns.offset_N].tolist()


def test_lists_may_share_the_rows_of_a_key():
    schema = Schema(labels=("click",), categorical=("key",), multi_value=("last_keys",), share={"last_keys": "key"})
    raw = RawRecords.from_messages(CLICKS, [b'{"click": 1, "last_keys": ["a", 7]}'], keys=[b"a"])
    columns = decode(raw, schema)
    assert columns.features.categorical_NC[0, 0] == columns.features.lists[0].ids_M[0]
    assert columns.id_strings.features.tolist() == [0]


@pytest.mark.parametrize("names", [("Key",), ("header:",), ("key", "key"), ("user",)])
def test_other_names_are_refused(names):
    with pytest.raises(ValueError, match="record_fields"):
        DecodeConfig(record_fields=names)


def test_a_broker_brings_keys_and_headers_by_both_ways_of_reading(testbed):
    testbed.create()
    with Producer(testbed.kafka) as producer:
        for n, (key, headers, *_) in enumerate(RECORDS):
            if all(value is not None for _, value in headers):
                producer.send(testbed.name, message(n), key=key, headers=headers)
        producer.flush()
    expected = [ids for ids, record in zip(IDS, RECORDS, strict=True) if all(v is not None for _, v in record[1])]
    schema = Schema(labels=("click",), categorical=SCHEMA.categorical)
    config = SourceConfig(topic=testbed.name, bootstrap_servers=testbed.broker.address, record_fields=FIELDS)
    with KafkaSource(config, schema) as source:
        columns = testbed.read(source, len(expected))
    assert np.concatenate([part.features.categorical_NC for part in columns]).tolist() == expected
    consumer = PartitionConsumer(testbed.kafka, {testbed.partition: 0}, raw=False)
    try:
        raws: list[RawRecords] = []
        wait_until(lambda: raws.extend(consumer.poll(0.1)) or sum(map(len, raws)) == len(expected), "the records")
    finally:
        consumer.close()
    decoder = Decoder(schema, DecodeConfig(record_fields=FIELDS))
    parts = [decoder.decode(raw, wall_ms()).features.categorical_NC for raw in raws]
    assert np.concatenate(parts).tolist() == expected
