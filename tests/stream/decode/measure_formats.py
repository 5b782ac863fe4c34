"""How fast each format is decoded to columns, beside its own library.

`PYTHONPATH=deploy/package:deploy/client:. python tests/stream/decode/measure_formats.py`

The library alone decodes the same messages, one after another, and reads every field that the samples have; it keeps
nothing, which spares it Python's garbage collector. A sample has 2 large ids, 6 ids, a string, 6 numbers, a label and a
time; "paths": as fields of objects in the message.

pyarrow alone does what our columns need as far as it can: it validates each batch in full (damaged offsets are read out
of bounds otherwise) and makes arrays of the types that learning takes, int64, float32 and, as it hashes nothing, the
places of strings in a dictionary of its own; by message, or once for the tables of all messages together. "Tables": it
only opens the streams, and neither checks nor copies anything.
"""

import gc
import io
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.positions import Partition
from springtide_client.schema import Schema

NOW_MS = 1_700_000_000_000
NUM_SAMPLES, REPEATS = 20_000, 7
KINDS = {"user": "long", "item": "long", **{f"c{i}": "int" for i in range(6)}, "name": "string"}
KINDS |= {**{f"f{i}": "double" for i in range(6)}, "click": "int", "ts": "long"}
SCHEMA = Schema(
    labels=("click",),
    timestamp="ts",
    categorical=tuple(name for name in KINDS if name[0] in "uicn" and name != "click"),
    dense=tuple(f"f{i}" for i in range(6)),
)
# as fields of objects
OBJECTS = {"user": "user.id", "item": "item.id", **{f"c{i}": f"context.c{i}" for i in range(6)}}
NESTED = Schema(
    labels=("click",),
    timestamp="ts",
    categorical=tuple(OBJECTS.get(name, name) for name in SCHEMA.categorical),
    dense=SCHEMA.dense,
)
ARROW = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(), "double": pa.float64()}
rng = random.Random(1)


def make_row() -> dict[str, Any]:
    large = {"user": rng.randrange(2**32, 2**40), "item": rng.randrange(2**32, 2**40)}
    small = {f"c{i}": rng.randrange(100_000) for i in range(6)}
    numbers = {f"f{i}": round(rng.random(), 4) for i in range(6)}
    return {**large, **small, "name": f"name-{rng.randrange(5000)}", **numbers, "click": rng.randrange(2), "ts": NOW_MS}


ROWS = [make_row() for _ in range(NUM_SAMPLES)]


def rate(call: Callable[[], object]) -> float:
    """Million samples a second, the median of REPEATS."""
    call()
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        rates.append(NUM_SAMPLES / (time.perf_counter() - start) / 1e6)
    return median(rates)


def measure(
    name: str,
    values: list[bytes],
    library: Callable[[bytes], object] | None = None,
    *,
    library_of_all: Callable[[list[bytes]], object] | None = None,
    schema: Schema = SCHEMA,
    **options: Any,
) -> None:
    raw = RawRecords.from_messages(Partition("clicks", 0), values)
    decoder, slow = (Decoder(schema, DecodeConfig(**options)) for _ in range(2))
    slow.fast_path = slow.table_parser = None
    assert len(decoder.decode(raw, NOW_MS)) == NUM_SAMPLES

    def alone() -> None:
        if library is None:
            assert library_of_all is not None
            library_of_all(values)
            return
        for value in values:
            library(value)

    ours, theirs = rate(lambda: decoder.decode(raw, NOW_MS)), rate(alone)
    start = time.perf_counter()
    slow.decode(raw, NOW_MS)
    reference = NUM_SAMPLES / (time.perf_counter() - start) / 1e6
    size = len(raw.buffer) / NUM_SAMPLES
    print(
        f"{name:24} {size:5.0f} bytes  ours {ours:6.3f}  library {theirs:6.3f}  x{ours / theirs:6.2f}  "
        f"reference {reference:.3f}"
    )


def read_fields(record: dict[str, Any]) -> None:
    for name in KINDS:
        record[name]


def avro(folder: Path) -> None:
    fields = [{"name": name, "type": kind} for name, kind in KINDS.items()]
    schema = fastavro.parse_schema({"type": "record", "name": "Click", "fields": fields})
    values = []
    for row in ROWS:
        fastavro.schemaless_writer(stream := io.BytesIO(), schema, row)
        values.append(stream.getvalue())
    (folder / "a.avsc").write_text(json.dumps({"type": "record", "name": "Click", "fields": fields}))
    measure(
        "avro",
        values,
        lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema),
        format="avro",
        schema_file=folder / "a.avsc",
    )
    more = {"name": "more", "type": ["null", "string"], "default": None}
    reader = {"type": "record", "name": "Click", "fields": [*reversed(fields), more]}
    (folder / "b.avsc").write_text(json.dumps(reader))
    reader = fastavro.parse_schema(reader)
    measure(
        "avro, reader's schema",
        values,
        lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema, reader),
        format="avro",
        schema_file=folder / "a.avsc",
        reader_schema_file=folder / "b.avsc",
    )


def protobuf(folder: Path) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    kinds = {"long": "INT64", "int": "INT32", "string": "STRING", "double": "DOUBLE"}
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Click")
    for number, (name, kind) in enumerate(KINDS.items(), start=1):
        message.field.add(
            name=name, number=number, label=types.LABEL_OPTIONAL, type=getattr(types, f"TYPE_{kinds[kind]}")
        )
    (folder / "a.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    click = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Click"))
    names = tuple(KINDS)

    def parse(value: bytes) -> None:
        message = click.FromString(value)
        for name in names:
            getattr(message, name)

    values = [click(**row).SerializeToString() for row in ROWS]
    options: dict[str, Any] = {"format": "protobuf", "descriptor_file": folder / "a.desc", "message": "shop.Click"}
    measure("protobuf, all fields", values, parse, **options)
    measure("protobuf, parse only", values, click.FromString, **options)


def arrow(num_rows: int) -> None:
    schema = pa.schema({name: ARROW[kind] for name, kind in KINDS.items()})
    values = []
    for first in range(0, NUM_SAMPLES, num_rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(ROWS[first : first + num_rows], schema))
        values.append(sink.getvalue().to_pybytes())
    measure(f"arrow, {num_rows} rows", values, arrays_of_message, format="arrow")
    measure("  all together", values, library_of_all=arrays_of_all, format="arrow")
    measure("  tables", values, lambda value: pa.ipc.open_stream(value).read_all(), format="arrow")


def validated_table(value: bytes) -> pa.Table:
    with pa.ipc.open_stream(value) as reader:
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


def arrays_of(table: pa.Table) -> list[Any]:
    arrays = []
    for name, kind in KINDS.items():
        column = table.column(name)
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if kind == "string":
            arrays.append(array.dictionary_encode().indices.to_numpy().astype(np.int64))
        else:
            is_number = name in SCHEMA.dense or name in SCHEMA.labels
            arrays.append(array.to_numpy().astype(np.float32 if is_number else np.int64, copy=False))
    return arrays


def arrays_of_message(value: bytes) -> list[Any]:
    return arrays_of(validated_table(value))


def arrays_of_all(values: list[bytes]) -> list[Any]:
    return arrays_of(pa.concat_tables([validated_table(value) for value in values]))


def in_objects(row: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in row.items():
        *outer, last = OBJECTS.get(name, name).split(".")
        (nested.setdefault(outer[0], {}) if outer else nested)[last] = value
    return nested


if __name__ == "__main__":
    gc.disable()
    measure("json", [json.dumps(row).encode() for row in ROWS], msgspec.json.decode, format="json")
    measure("msgpack", [msgspec.msgpack.encode(row) for row in ROWS], msgspec.msgpack.decode, format="msgpack")
    nested = [in_objects(row) for row in ROWS]
    measure(
        "json, paths", [json.dumps(row).encode() for row in nested], msgspec.json.decode, schema=NESTED, format="json"
    )
    packed = [msgspec.msgpack.encode(row) for row in nested]
    measure("msgpack, paths", packed, msgspec.msgpack.decode, schema=NESTED, format="msgpack")
    with tempfile.TemporaryDirectory() as name:
        avro(Path(name))
        protobuf(Path(name))
    for num_rows in (16, 64, 1000):
        arrow(num_rows)
