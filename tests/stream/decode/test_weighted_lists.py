"""Ids with weights in each format: the lists that JSON gives; what is no weight is a dead letter."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from springtide.stream.columns import Batch, Columns
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide_client.features import Features, Ragged
from springtide_client.keys import encode_id
from springtide_client.schema import Schema
from tests.stream.decode.format_records import decode

SCHEMA = Schema(
    labels=("click",),
    categorical=("user",),
    multi_value=("tags", "genres"),
    sequence=("last",),
    weighted=("tags",),
    max_length={"tags": 3},
)
WEIGHTS: list[dict[str, float]] = [{"rock": 0.75, "7": -0.25}, {}, {"jazz": 5000.0, "rock": 0.0, "a": 1.0, "b": 2.0}]
ROCK, JAZZ, A = (encode_id(text)[0] for text in ("rock", "jazz", "a"))
IDS, OFFSETS, EXPECTED = [ROCK, 7, JAZZ, ROCK, A], [0, 2, 2, 5], [0.75, -0.25, 1000.0, 0.0, 1.0]


def row(weights: Any, *, in_pairs: bool = False) -> dict[str, Any]:
    tags = [[id_, weight] for id_, weight in weights.items()] if in_pairs else weights
    return {"click": 1, "user": 3, "tags": tags, "genres": ["x", 2], "last": [5]}


def assert_expected(columns: Columns) -> None:
    assert not columns.dead_letters
    tags, genres, last = columns.features.lists
    assert (tags.ids_M.tolist(), tags.offsets.tolist()) == (IDS, OFFSETS)
    assert tags.weights_M is not None
    assert (tags.weights_M.dtype, tags.weights_M.tolist()) == (np.float32, EXPECTED)
    assert (genres.offsets.tolist(), genres.weights_M) == ([0, 2, 4, 6], None)
    assert (last.ids_M.tolist(), last.weights_M) == ([5, 5, 5], None)
    assert {"rock", "jazz", "a", "b", "x"} == set(columns.id_strings.strings)


@pytest.mark.parametrize("in_pairs", [False, True])
@pytest.mark.parametrize(("name", "encode"), [("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)])
def test_objects_and_pairs_give_the_same_lists(name: str, encode: Any, in_pairs: bool) -> None:
    messages = [encode(row(weights, in_pairs=in_pairs)) for weights in WEIGHTS]
    assert_expected(decode(messages, Decoder(SCHEMA, DecodeConfig(format=name))))


def test_maps_of_avro(tmp_path: Path) -> None:
    fields = [("click", "int"), ("user", "long"), ("tags", {"type": "map", "values": "double"})]
    fields += [("genres", {"type": "array", "items": ["string", "long"]}), ("last", {"type": "array", "items": "long"})]
    schema = {"type": "record", "name": "Click", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    (tmp_path / "click.avsc").write_text(json.dumps(schema))
    messages = []
    for weights in WEIGHTS:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row(weights))
        messages.append(out.getvalue())
    config = DecodeConfig(format="avro", schema_file=tmp_path / "click.avsc")
    assert_expected(decode(messages, Decoder(SCHEMA, config)))


@pytest.mark.parametrize("in_one", [False, True])
def test_maps_of_arrow(in_one: bool) -> None:
    def message(rows: list[dict[str, float]]) -> bytes:
        columns = {
            "click": pa.array([1] * len(rows)),
            "user": pa.array([3] * len(rows)),
            "tags": pa.array([list(weights.items()) for weights in rows], pa.map_(pa.string(), pa.float64())),
            "genres": pa.array([["x", "2"]] * len(rows)),
            "last": pa.array([[5]] * len(rows)),
        }
        table, sink = pa.table(columns), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    messages = [message(WEIGHTS)] if in_one else [message([weights]) for weights in WEIGHTS]
    assert_expected(decode(messages, Decoder(SCHEMA, DecodeConfig(format="arrow"))))


def test_maps_of_protobuf(tmp_path: Path) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="click.proto", syntax="proto3")
    click = file.message_type.add(name="Click")
    entry = click.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    for place, (name, kind) in enumerate((("key", types.TYPE_STRING), ("value", types.TYPE_DOUBLE)), 1):
        entry.field.add(name=name, number=place, type=kind, label=types.LABEL_OPTIONAL)
    kinds = {"click": types.TYPE_INT32, "user": types.TYPE_INT64, "genres": types.TYPE_STRING, "last": types.TYPE_INT64}
    for place, (name, kind) in enumerate(kinds.items(), 1):
        label = types.LABEL_REPEATED if name in ("genres", "last") else types.LABEL_OPTIONAL
        click.field.add(name=name, number=place, type=kind, label=label)
    click.field.add(
        name="tags", number=9, type=types.TYPE_MESSAGE, type_name=".Click.TagsEntry", label=types.LABEL_REPEATED
    )
    (tmp_path / "click.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("Click"))
    messages = []
    for weights in WEIGHTS:
        message = make(click=1, user=3, genres=["x", "2"], last=[5])
        for id_, weight in weights.items():  # a message writes its map in an order of its own
            message.tags[id_] = weight
        messages.append(message.SerializeToString(deterministic=False))
    config = DecodeConfig(format="protobuf", descriptor_file=tmp_path / "click.desc", message="Click")
    columns = decode(messages, Decoder(SCHEMA, config))
    assert not columns.dead_letters
    tags = columns.features.lists[0]
    found = {}
    for n in range(3):
        own = tags.slice(n, n + 1)
        assert own.weights_M is not None
        found[n] = dict(zip(own.ids_M.tolist(), own.weights_M.tolist(), strict=True))
    assert found[0] == {ROCK: 0.75, 7: -0.25}
    assert found[1] == {}
    assert len(found[2]) == 3
    known = {encode_id(id_)[0]: min(weight, 1000.0) for id_, weight in WEIGHTS[2].items()}
    assert found[2].items() <= known.items()


@pytest.mark.parametrize(
    ("tags", "reason", "says"),
    [
        ('["rock"]', "wrong_type", "tags: an element of a weighted list is [id, weight], not rock"),
        ('"rock"', "wrong_type", "tags: expected an object of weights by id, or a list of [id, weight], got str"),
        ('{"rock": null}', "wrong_type", "tags: the weight of 'rock': NoneType is not a number"),
        ('{"rock": NaN}', "not_finite", "a number is NaN, infinite or too large"),
        ('{"rock": -Infinity}', "not_finite", "a number is NaN, infinite or too large"),
        ('{"rock": 1e300}', "not_finite", "tags: the weight of 'rock': 1e+300 is not a finite 32-bit number"),
    ],
)
def test_what_is_no_weight_makes_the_record_a_dead_letter(tags: str, reason: str, says: str) -> None:
    good = json.dumps(row(WEIGHTS[0])).encode()
    bad = f'{{"click": 1, "tags": {tags}}}'.encode()
    columns = decode([good, bad, good], Decoder(SCHEMA))
    assert len(columns) == 2
    (letter,) = columns.dead_letters
    assert (letter.offset, letter.reason, letter.detail) == (1, reason, says)


def test_weights_stay_with_their_ids_in_every_part_of_columns() -> None:
    columns = decode([json.dumps(row(weights)).encode() for weights in WEIGHTS], Decoder(SCHEMA))
    parts = [columns.slice(0, 1), columns.slice(1, 3)]
    assert_expected_lists(Columns.concatenate(parts).features)
    assert_expected_lists(Columns.concatenate([Columns.empty(SCHEMA), *parts, Columns.empty(SCHEMA)]).features)
    turned = columns.take(np.array([2, 0, 1]))
    assert_expected_lists(turned.take(np.array([1, 2, 0])).features)
    assert_expected_lists(Features.concatenate([Batch.empty(SCHEMA).features, columns.features]))
    kept = columns.features.lists[0].keep(np.array([True, False, True, True, False]))
    assert (kept.ids_M.tolist(), kept.offsets.tolist()) == ([ROCK, JAZZ, ROCK], [0, 1, 1, 3])
    assert kept.weights_M is not None
    assert kept.weights_M.tolist() == [0.75, 1000.0, 0.0]
    twice = columns.features.lists[0].slice(0, 1).repeat(2)
    assert twice.weights_M is not None
    assert (twice.ids_M.tolist(), twice.weights_M.tolist()) == ([ROCK, 7] * 2, [0.75, -0.25] * 2)


def assert_expected_lists(features: Features) -> None:
    tags = features.lists[0]
    assert tags.weights_M is not None
    assert (tags.ids_M.tolist(), tags.offsets.tolist(), tags.weights_M.tolist()) == (IDS, OFFSETS, EXPECTED)


def test_lists_with_weights_and_lists_without_are_not_joined() -> None:
    without = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="some lists have weights and others have none"):
        Ragged.concatenate([without, Ragged(without.ids_M, without.offsets, np.zeros(0, np.float32))])
