"""Hostile requests over sockets: each gets an error with a hint, never a 5xx, never a wrong row."""

import contextlib
import gzip

import msgspec
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.lookup.codecs import decode_request
from springtide.app.serving.lookup.content_negotiation import MediaType
from tests.app.serving.attacked_server import ADMIN, BODIES, PLAIN_ARROW, arrow_stream
from tests.app.serving.raw_connection import ARROW, JSON, MSGPACK, RAW, error_code, get, request

LONG = "9" * 5_000


@pytest.mark.parametrize("kind", BODIES)
def test_a_truncated_body_is_rejected_or_a_shorter_request(attacked, kind):
    connection, body = attacked.connect(), BODIES[kind]
    assert connection.exchange(request(body, kind=kind))[0] == 200
    for cut in range(0, len(body), max(1, len(body) // 40)):
        answer = connection.exchange(request(body[:cut], kind=kind))
        if answer[0] == 200:  # whole ids, or an Arrow stream without its end mark
            assert kind in (RAW, ARROW)
        else:
            error_code(answer, 400)
    attacked.check_healthy()


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (JSON, b"", 400),
        (JSON, b'{"ids":["\xff\xfe"]}', 400),
        (JSON, b'{"ids":["\\ud800"]}', 400),
        (JSON, f'{{"ids":[{LONG}]}}'.encode(), 400),
        (JSON, b'{"ids":[1e400]}', 400),
        (JSON, b'{"ids":[1.5]}', 422),
        (JSON, b'{"ids":' + b"[" * 100_000, 400),
        (JSON, b'{"ids":[' + b"[" * 500 + b"]" * 500 + b"]}", 422),
        (JSON, b'{"ids":[1],"max_staleness":5}', 400),
        (JSON, b'{"ids":[1],"max_staleness_ms":-1}', 400),
        (JSON, b'{"ids":[' + b"1," * 500_000 + b"1]}", 413),
        (JSON, b"x" * 2**21, 400),
        (JSON, b"x" * (2**21 + 1), 413),
        (JSON, b"x" * 10_000_000, 413),
        (MSGPACK, b"\xc1", 400),
        (MSGPACK, b"\x81\xa3ids\xdd\xff\xff\xff\xff", 400),
        (MSGPACK, b"\x81\xa3ids" + b"\xdd\xff\xff\xff\xff" * 100, 400),
        (MSGPACK, b"\x81\xa3ids\xdd\x7f\xff\xff\xff" + b"\1" * 1_000, 400),
        (MSGPACK, b"\x81\xa3ids\xdd\0\x0f\x42\x40" + b"\1" * 1_000_000, 413),
        (MSGPACK, b"\xdf\xff\xff\xff\xff\xa3ids\x91\1", 400),
        (MSGPACK, b"\x81\xa3ids\x91\xc6\xff\xff\xff\xff\0", 400),
        (MSGPACK, b"\x81\xa3ids\x91\xa2\xff\xfe", 400),
        (MSGPACK, b"\x81\xa3ids" + b"\x91" * 100_000 + b"\1", 400),
        (MSGPACK, b"\x81\xa3ids\x91\1zzzz", 400),
        (MSGPACK, b"\x81\xa3ids\x91\xd6\xff\0\0\0\0", 422),
        (MSGPACK, msgspec.msgpack.encode({"ids": [1], "max_staleness_ms": float("nan")}), 400),
        (ARROW, b"ARROW1\0\0" + PLAIN_ARROW, 400),
        (ARROW, arrow_stream(pyarrow.table({"id": np.zeros(500_000, np.int64)}), compression="zstd"), 413),
        (ARROW, arrow_stream(pyarrow.table({"id": np.zeros(100, np.int64)}), compression="lz4"), 422),
        (ARROW, arrow_stream(pyarrow.table({"id": pyarrow.array(["a"]).dictionary_encode()})), 422),
        (ARROW, arrow_stream(pyarrow.table({"id": pyarrow.nulls(3)})), 422),
        (ARROW, arrow_stream(pyarrow.table({"id": pyarrow.array([b"\xff"]).view(pyarrow.string())})), 400),
        (ARROW, arrow_stream(pyarrow.table({"key": [1]})), 400),
        (RAW, b"1234567", 400),
        (RAW, bytes(8 * 10_001), 413),
    ],
)
def test_a_malformed_body_is_rejected_on_both_paths(attacked, kind, body, status):
    error_code(attacked.exchange(request(body, kind=kind)), status)
    # and with a head that is known, because a valid body of the same length was sent before
    connection = attacked.connect()
    known = BODIES[JSON].ljust(len(body)) if kind == JSON and 20 < len(body) < 60_000 else None
    if known is not None:
        assert [connection.exchange(request(known, kind=kind))[0] for _ in range(2)] == [200, 200]
        error_code(connection.exchange(request(body, kind=kind)), status)
    attacked.check_healthy()


def test_ids_and_contexts_as_long_as_a_body_are_answered(attacked):
    text = "a" * 2_000_000
    status, _, body = attacked.exchange(request(msgspec.json.encode({"ids": [text]}), kind=JSON))
    assert (status, msgspec.json.decode(body)["status"]) == (200, ["unknown"])
    context = {"last_items": [1] * 100_000, "user_id": "u" * 100_000}
    for own in ({}, {"last_items": [5], "user_id": 5}):  # a field that one candidate overrides is added to all others
        many = msgspec.json.encode({"context": context, "candidates": [own] + [{}] * 5_000})
        status, _, body = attacked.exchange(request(many, kind=JSON, path="/v1/predict"))
        predictions = msgspec.json.decode(body)["predictions"]
        assert (status, len(predictions)) == (200, 5_001)
        assert predictions[1] == predictions[-1]


@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("/v1/bases/{base}/files/..%2f..%2f..%2fetc%2fpasswd", (404,)),
        ("/v1/bases/{base}/files/%2e%2e", (404,)),
        ("/v1/bases/{base}/files/../manifest-0000000001.json", (404,)),
        ("/v1/bases/{base}/files/manifest.json%00", (404,)),
        ("/v1/bases/{base}/files//etc/passwd", (404,)),
        ("/v1/bases/..%2f..%2fetc/files/passwd", (404,)),
        ("/v1/bases/-1/files/manifest.json", (410,)),
        ("/v1/bases/" + "9" * 300 + "/files/manifest.json", (410,)),
        (f"/v1/bases/{LONG}/files/manifest.json", (422,)),
        ("/v1/snapshot?version=" + "9" * 300, (410,)),
        (f"/v1/snapshot?version={LONG}", (422,)),
        ("/v1/snapshot?rows=../../x", (422,)),
        ("/v1/versions/" + "9" * 4_000, (410,)),
        ("/v1/versions/-5", (410,)),
        ("/v1/log?after=" + "9" * 4_000, (410,)),
        ("/v1/versions/latest?after=1&wait_seconds=nan", (422,)),
        ("/v1/versions/latest?after=1&wait_seconds=1e999", (422,)),
        (f"/v1/embeddings/user_id/{LONG}", (404,)),
        (f"/v1/embeddings/user_id/{-(2**63)}", (404,)),
        (f"/v1/embeddings/user_id/{2**63}", (404,)),
        ("/v1/embeddings/user_id/%ff", (404,)),
        ("/v1/embeddings/%00/1", (404,)),
        ("/v1/embeddings/a%0d%0aX-Evil:%20yes/1", (404,)),
        ("/v1/embeddings/user_id/1/neighbors?k=" + "9" * 4_000, (422,)),
        ("/v1/embeddings/user_id/1/neighbors?metric=%0d%0aX-Evil:%20yes", (422,)),
        ("/v1/commands/..%2f..%2fetc%2fpasswd", (404,)),
        ("/v1/commands/%00", (404,)),
        ("/v1/predict/", (404,)),
        ("//v1/status", (404,)),
        ("/%", (404,)),
        ("/" + "a" * 60_000, (404,)),
        ("/" + "a" * 200_000, (431,)),
        (b"/v1/embeddings/user_id/\xc3\xa9", (400,)),
        (b"/v1/embeddings/user_id/\0", (400,)),
    ],
)
def test_hostile_paths_reach_nothing(attacked, path, statuses):
    if isinstance(path, str):
        path = path.replace("{base}", str(1 << 32))
    answer = attacked.exchange(get(path, ADMIN))
    error_code(answer, *statuses)
    assert "x-evil" not in answer[1]
    assert b"root:" not in answer[2]


@pytest.mark.parametrize(
    ("header", "statuses"),
    [
        (f"Range: bytes={LONG}-", (200,)),
        (f"Range: bytes=0-{LONG}", (200,)),
        (f"Range: bytes=-{LONG}", (200,)),
        ("Range: bytes=" + "0-1," * 5_000, (200,)),
        ("If-None-Match: " + '"x",' * 10_000, (200,)),
        ("Range: bytes=999999999-", (416,)),
    ],
)
def test_ranges_of_any_length_are_parsed(attacked, header, statuses):
    assert attacked.exchange(get(f"/v1/bases/{1 << 32}/files/manifest.json", header))[0] in statuses


@pytest.mark.parametrize("value", [LONG, "nan", "inf", "-1", "1_0", "\xb2", "", "0x10", "5,5"])
def test_a_precondition_that_is_not_a_number_is_rejected(attacked, value):
    for name in ("X-Springtide-Min-Version", "X-Springtide-Max-Staleness-Ms"):
        if (name, value) == ("X-Springtide-Min-Version", "-1"):
            continue  # every version is beyond it
        error_code(attacked.exchange(get("/v1/embeddings/user_id/1", f"{name}: {value}")), 400, 503)
        error_code(attacked.exchange(request(BODIES[RAW], extra=[f"{name}: {value}"])), 400, 503)


def test_a_precondition_means_the_same_in_header_and_body(attacked):
    assert attacked.exchange(get("/v1/embeddings/user_id/1", "X-Springtide-Max-Staleness-Ms: 1e9 \t"))[0] == 200
    for path, body in (("/v1/embeddings/user_id", b'{"ids":[1],'), ("/v1/predict", b'{"instances":[{}],')):
        body += b'"max_staleness_ms":'
        error_code(attacked.exchange(request(body + b"-1}", kind=JSON, path=path)), 400)
        assert attacked.exchange(request(body + b"1e9}", kind=JSON, path=path))[0] == 200


@pytest.mark.parametrize("kind", BODIES)
def test_a_compressed_body_is_rejected(attacked, kind):
    body = gzip.compress(BODIES[kind])
    body += bytes(-len(body) % 8)  # a multiple of 8 bytes, which raw ids would be decoded from
    for path in ("/v1/embeddings/user_id", "/v1/predict"):
        error_code(attacked.exchange(request(body, kind=kind, path=path, extra=["Content-Encoding: gzip"])), 415)
    assert attacked.exchange(request(BODIES[kind], kind=kind, extra=["Content-Encoding: identity"]))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/forget", b'{"feature":"user_id","id":1.5}'),
        ("POST", "/v1/forget", f'{{"feature":"user_id","id":{LONG}}}'.encode()),
        ("POST", "/v1/forget", b'{"feature":"user_id","id":[1]}'),
        ("POST", "/v1/forget", b'{"feature":"user_id","id":"\xff"}'),
        ("POST", "/v1/rollback", b'{"version":1180591620717411303424}'),
        ("POST", "/v1/rollback", b'{"version":5,"skp":true}'),
        ("PATCH", "/v1/table", b'{"lr":' + b"9" * 330 + b"}"),
        ("PATCH", "/v1/table", b'{"device_bytes":' + b"9" * 300 + b"}"),
        ("PATCH", "/v1/table", b'{"device_bytes":"' + b"9" * 300 + b'GiB"}'),
        ("PATCH", "/v1/table", b'{"features":{"user_id":{"min_count":' + b"9" * 300 + b"}}}"),
    ],
)
def test_an_invalid_command_is_not_submitted(attacked, method, path, body):
    error_code(attacked.exchange(request(body, kind=JSON, path=path, method=method, extra=[ADMIN])), 400, 422)
    assert not (attacked.path / "commands").exists()


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    st.sampled_from(sorted(BODIES)),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 400),
)
def test_any_bytes_are_a_request_or_an_api_error(kind, flips, length):
    body = bytearray(BODIES[kind])
    for place, value in flips:
        body[place % len(body)] = value
    with contextlib.suppress(ApiError):
        question = decode_request(MediaType(kind), bytes(body[: len(body) - length // 8]), 10)
        assert len(question.ids_N) == len(question.raw_ids) <= 10
