import io

import msgspec
import numpy as np
import pyarrow
import pytest

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.route import ARROW, JSON, MSGPACK, RAW
from springtide.app.serving.lookup.codecs import decode_request, encode_response, parse_ids
from springtide.app.serving.lookup.content_negotiation import MediaType
from springtide_client.keys import hash_string

ROWS = np.array([[0.5, -1.5], [np.nan, np.nan]], dtype=np.float32)
STATUS = np.array([0, 3], dtype=np.uint8)


def test_ids_in_json_equal_ids_in_records():
    ids = parse_ids([5, "5", 5.0, True, "text", 2**70, None])
    assert ids[0] == ids[1] == ids[2] == 5
    assert ids[3] == 1
    assert ids[4] == hash_string(b"text")
    assert ids[5] == hash_string(str(2**70).encode())


@pytest.mark.parametrize("bad", [[1], {"a": 1}, 1.5])
def test_an_invalid_id_is_reported_by_its_index(bad):
    with pytest.raises(ApiError) as caught:
        parse_ids([1, 2, bad])
    assert caught.value.status == 422
    assert caught.value.details == {"index": 2}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"ids": 5}', b'{"id": [5]}', b"\xff", b"[" * 100_000])
def test_a_malformed_body_is_a_bad_request(body):
    for name in (JSON, MSGPACK, ARROW):
        with pytest.raises(ApiError) as caught:
            decode_request(MediaType(name), body, 10)
        assert caught.value.status == 400


def test_too_many_ids_are_rejected_in_every_media_type():
    table = pyarrow.table({"id": [1, 2, 3]})
    bodies = {
        JSON: b'{"ids":[1,2,3]}',
        MSGPACK: msgspec.msgpack.encode({"ids": [1, 2, 3]}),
        ARROW: arrow_stream(table),
        RAW: np.arange(3, dtype="<i8").tobytes(),
    }
    for name, body in bodies.items():
        assert len(decode_request(MediaType(name), body, 3).ids_N) == 3
        with pytest.raises(ApiError) as caught:
            decode_request(MediaType(name), body, 2)
        assert caught.value.status == 413


def test_raw_bytes_are_rows_then_status():
    question = decode_request(MediaType(RAW), np.array([7, -1], dtype="<i8").tobytes(), 10)
    full = encode_response(MediaType(RAW), question, ROWS, STATUS, feature="f", version=1)
    assert full == ROWS.tobytes() + b"\x00\x03"
    half = encode_response(MediaType(RAW, True), question, ROWS, STATUS, feature="f", version=1)
    assert half == ROWS.astype("<f2").tobytes() + b"\x00\x03"
    with pytest.raises(ApiError):
        decode_request(MediaType(RAW), b"1234567", 10)


def test_json_and_msgpack_carry_the_same_map():
    question = decode_request(MediaType(JSON), b'{"ids": [7, "x"], "max_staleness_ms": 500}', 10)
    assert question.max_staleness_ms == 500
    answer = msgspec.json.decode(encode_response(MediaType(JSON), question, ROWS, STATUS, feature="f", version=9))
    assert answer == {
        "feature": "f",
        "version": 9,
        "dim": 2,
        "ids": [7, "x"],
        "status": ["known", "forgotten"],
        "vectors": [[0.5, -1.5], None],
    }
    packed = msgspec.msgpack.decode(encode_response(MediaType(MSGPACK), question, ROWS, STATUS, feature="f", version=9))
    assert packed.pop("vectors") == ROWS.tobytes()
    answer.pop("vectors")
    assert packed == answer


@pytest.mark.parametrize("ids", [[7, 8], ["a", "b"]])
def test_arrow_ids_are_decoded_and_rows_encoded(ids):
    question = decode_request(MediaType(ARROW), arrow_stream(pyarrow.table({"id": ids, "other": [1, 2]})), 10)
    answer = encode_response(MediaType(ARROW), question, ROWS, STATUS, feature="f", version=9)
    table = pyarrow.ipc.open_stream(answer).read_all()
    assert table.to_pydict() == {"id": ids, "status": ["known", "forgotten"], "vector": [[0.5, -1.5], None]}
    assert table.schema.field("vector").type == pyarrow.list_(pyarrow.float32(), 2)


def test_a_request_without_ids_is_valid():
    none, no_status = np.empty((0, 2), dtype=np.float32), np.empty(0, dtype=np.uint8)
    for form in (MediaType(JSON), MediaType(MSGPACK), MediaType(ARROW), MediaType(RAW)):
        body = {JSON: b'{"ids":[]}', MSGPACK: msgspec.msgpack.encode({"ids": []}), RAW: b""}.get(form.name)
        question = decode_request(form, arrow_stream(pyarrow.table({"id": []})) if body is None else body, 10)
        encode_response(form, question, none, no_status, feature="f", version=1)


def arrow_stream(table):
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
