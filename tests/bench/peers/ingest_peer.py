"""Kafka clients and decoders of messages, for ingest.raw, ingest.columns and ingest.decode.

A client reads the first records of the topic's only partition, from its own start to the last record; it checks the
records' CRC unless its name says otherwise. Columns are ids (int64, N x 8), numbers (float32, N x 6), times (int64) and
labels (float32).
"""

# N records, C ids, F numbers
import asyncio
import gc
import io
import os
import time
from contextlib import contextmanager
from hashlib import sha256
from operator import attrgetter, itemgetter
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.record.default_records
import msgspec
import numpy as np
import orjson
import polars
import pyarrow as pa
import pyarrow.json
import simdjson
from kafka.record._crc32c import crc as python_crc32c
from serving import load, serve

TOPIC = "events"
IDS = ("user", "item", *(f"c{number}" for number in range(6)))
NUMBERS = tuple(f"f{number}" for number in range(6))
FIELDS = ("ts", *IDS, *NUMBERS, "click")
THREADS = int(os.environ["PEER_THREADS"])
FETCH_BYTES = 8 << 20
pa.set_cpu_count(THREADS)
gc.disable()  # keeping many small objects would halve the decoders that make them
state: dict[str, Any] = {}


def versions():
    return {
        "kafka-python": kafka.__version__,
        "aiokafka": aiokafka.__version__,
        "confluent-kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
        "msgspec": msgspec.__version__,
        "orjson": orjson.__version__,
        "pysimdjson": str(simdjson.__version__) if hasattr(simdjson, "__version__") else "7.0.2",
        "pyarrow": pa.__version__,
        "polars": polars.__version__,
    }


# reading: a client is a generator of lists of (offset, value), as its users get records


@contextmanager
def confluent(address, *, check_crcs=True):
    """The tuning without which librdkafka pauses for a second whenever its queue is full."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "peer",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,
            "check.crcs": check_crcs,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    try:
        yield consumer
    finally:
        consumer.close()


def read_confluent(address, num_records, take, *, check_crcs=True):
    with confluent(address, check_crcs=check_crcs) as consumer:
        count = 0
        while count < num_records:
            messages = consumer.consume(500, 10.0)
            if not messages:
                raise TimeoutError(f"{count} of {num_records} records")
            count += len(messages)
            take(messages)
        return time.perf_counter(), time.process_time()


def read_kafka_python(address, num_records, take):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
        max_poll_records=10_000,
    )
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    try:
        count = 0
        while count < num_records:
            records = consumer.poll(timeout_ms=10_000).get(partition)
            if not records:
                raise TimeoutError(f"{count} of {num_records} records")
            count += len(records)
            take(records)
        return time.perf_counter(), time.process_time()
    finally:
        consumer.close(autocommit=False)


def read_kafka_python_as_installed(address, num_records, take):
    """The package `crc32c` is not among its requirements."""
    module = kafka.record.default_records
    fast, module.calc_crc32c = module.calc_crc32c, python_crc32c
    try:
        return read_kafka_python(address, num_records, take)
    finally:
        module.calc_crc32c = fast


def read_aiokafka(address, num_records, take):
    async def read():
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, max_partition_fetch_bytes=FETCH_BYTES
        )
        await consumer.start()
        partition = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        try:
            count = 0
            while count < num_records:
                records = (await consumer.getmany(timeout_ms=10_000)).get(partition)
                if not records:
                    raise TimeoutError(f"{count} of {num_records} records")
                count += len(records)
                take(records)
            return time.perf_counter(), time.process_time()
        finally:
            await consumer.stop()

    return asyncio.run(read())


def read_confluent_unchecked(address, num_records, take):
    return read_confluent(address, num_records, take, check_crcs=False)


READERS = {
    "confluent, tuned": read_confluent,
    "confluent, tuned, no CRC": read_confluent_unchecked,
    "aiokafka": read_aiokafka,
    "kafka-python and crc32c": read_kafka_python,
    "kafka-python as installed": read_kafka_python_as_installed,
}


def offset_and_value(record):
    return (record.offset(), record.value()) if callable(record.offset) else (record.offset, record.value)


def run_read(peer, address, num_records):
    """Seconds from the client's construction to the last record; the records' objects are dropped."""
    last = []

    def take(records):
        last[:] = records[-1:]

    cpu, start = time.process_time(), time.perf_counter()
    end, cpu_end = READERS[peer](address, num_records, take)
    if offset_and_value(last[0])[0] < num_records - 1:
        raise ValueError(f"the last offset is {offset_and_value(last[0])[0]}")
    return {"seconds": end - start, "cpu_seconds": cpu_end - cpu}


def digest_read(peer, address, num_records):
    """SHA-256 of the values of the first records; the offsets must count from 0."""
    digest, count = sha256(), 0

    def take(records):
        nonlocal count
        for record in records:
            offset, value = offset_and_value(record)
            if offset != count:
                raise ValueError(f"offset {offset} follows {count - 1}")
            count += 1
            if count <= num_records:
                digest.update(value)

    READERS[peer](address, num_records, take)
    return digest.hexdigest()


# decoding: a decoder makes columns of a list of messages

Event = msgspec.defstruct(
    "Event",
    [("ts", int), *((name, int) for name in IDS), *((name, float) for name in NUMBERS), ("click", int)],
    gc=False,
)
decode_event = msgspec.json.Decoder(Event).decode
decode_packed_event = msgspec.msgpack.Decoder(Event).decode


def columns_of_rows(rows, get):
    """One pass for the integers and one for the numbers: NumPy converts tuples faster than sixteen generators."""
    integers = np.array([get["ints"](row) for row in rows], np.int64)
    numbers = np.array([get["floats"](row) for row in rows], np.float32)
    return {
        "ids": integers[:, 1:9],
        "numbers": numbers,
        "ms": integers[:, 0],
        "labels": integers[:, 9].astype(np.float32),
    }


INTS, FLOATS = ("ts", *IDS, "click"), NUMBERS
OF_STRUCT = {"ints": attrgetter(*INTS), "floats": attrgetter(*FLOATS)}
OF_DICT = {"ints": itemgetter(*INTS), "floats": itemgetter(*FLOATS)}


def decode_msgspec(values):
    return columns_of_rows([decode_event(value) for value in values], OF_STRUCT)


def decode_msgspec_msgpack(values):
    return columns_of_rows([decode_packed_event(value) for value in values], OF_STRUCT)


def decode_orjson(values):
    return columns_of_rows([orjson.loads(value) for value in values], OF_DICT)


simdjson_parser = simdjson.Parser()


def decode_simdjson(values):
    """Its objects are views of the parser's last document: the fields are taken one message after the other."""
    integers, numbers = [], []
    for value in values:
        event = simdjson_parser.parse(value)
        integers.append(OF_DICT["ints"](event))
        numbers.append(OF_DICT["floats"](event))
        del event
    found = np.array(integers, np.int64)
    return {
        "ids": found[:, 1:9],
        "numbers": np.array(numbers, np.float32),
        "ms": found[:, 0],
        "labels": found[:, 9].astype(np.float32),
    }


ARROW_SCHEMA = pa.schema([(name, pa.float64() if name in NUMBERS else pa.int64()) for name in FIELDS])
ARROW_PARSE = pyarrow.json.ParseOptions(explicit_schema=ARROW_SCHEMA, unexpected_field_behavior="ignore")


def columns_of_table(columns):
    return {
        "ids": np.stack([columns[name] for name in IDS], 1),
        "numbers": np.stack([columns[name].astype(np.float32) for name in NUMBERS], 1),
        "ms": columns["ts"],
        "labels": columns["click"].astype(np.float32),
    }


def decode_pyarrow(values):
    data = b"\n".join(values)
    blocks = THREADS if len(data) > 1 << 20 else 1
    read = pyarrow.json.ReadOptions(use_threads=THREADS > 1, block_size=len(data) // blocks + 1000)
    table = pyarrow.json.read_json(io.BytesIO(data), read, ARROW_PARSE)
    return columns_of_table({name: table.column(name).to_numpy() for name in FIELDS})


POLARS_SCHEMA = {name: polars.Float64 if name in NUMBERS else polars.Int64 for name in FIELDS}


def decode_polars(values):
    frame = polars.read_ndjson(b"\n".join(values), schema=POLARS_SCHEMA)
    return columns_of_table({name: frame[name].to_numpy() for name in FIELDS})


DECODERS = {
    "json": {
        "msgspec": decode_msgspec,
        "orjson": decode_orjson,
        "pysimdjson": decode_simdjson,
        "pyarrow": decode_pyarrow,
        "polars": decode_polars,
    },
    "msgpack": {"msgspec": decode_msgspec_msgpack},
}


def save_columns(parts, path):
    np.savez(path, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def run_columns(peer, address, num_records, path=None):
    """Read with tuned confluent and decode by thousands, in the order of arrival."""
    decode = DECODERS["json"][peer]
    parts = []
    cpu, start = time.process_time(), time.perf_counter()
    with confluent(address) as consumer:
        count = 0
        while count < num_records:
            messages = consumer.consume(min(5000, num_records - count), 10.0)
            if not messages:
                raise TimeoutError(f"{count} of {num_records} records")
            count += len(messages)
            parts.append(decode([message.value() for message in messages]))
        end, cpu_end = time.perf_counter(), time.process_time()
    if path is not None:
        save_columns(parts, path)
    return {"seconds": end - start, "cpu_seconds": cpu_end - cpu}


def take_messages(data, ends):
    """The messages to decode: their joined bytes and where each ends."""
    joined, ends_N = load(data).tobytes(), load(ends).tolist()
    state["values"] = [joined[start:end] for start, end in zip([0, *ends_N[:-1]], ends_N, strict=True)]


def run_decode(peer, message_format, rounds, path=None):
    decode = DECODERS[message_format][peer]
    start = time.perf_counter()
    for _ in range(rounds):
        columns = decode(state["values"])
    seconds = time.perf_counter() - start
    if path is not None:
        save_columns([columns], path)
    return {"seconds": seconds}


if __name__ == "__main__":
    serve(globals())
