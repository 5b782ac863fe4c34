"""Lookups in every pair of media types give the same rows and statuses, from one id to ten thousand."""

import re

import msgspec
import numpy as np
import pyarrow
import pytest

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.lookup.codecs import decode_request
from springtide.app.serving.lookup.content_negotiation import MediaType, negotiate_media_type, parse_content_type
from springtide_client.keys import encode_id
from tests.app.serving.attacked_server import ROWS, arrow_stream
from tests.app.serving.raw_connection import ARROW, JSON, MSGPACK, RAW, get, request

HALF = f"{RAW};dtype=float16"
NAMES = ["known", "unknown", "not_admitted", "forgotten"]
MIXED = [1, 2, 9, 77]


def encoded(kind: str, ids: list) -> bytes:
    if kind == RAW:
        return np.array(ids, "<i8").tobytes()
    if kind == ARROW:
        return arrow_stream(pyarrow.table({"id": ids}))
    return (msgspec.json if kind == JSON else msgspec.msgpack).encode({"ids": ids})


def decoded(kind: str, body: bytes, num: int):
    """Decode (rows float32 [N, 4], statuses) of a response body."""
    if kind in (RAW, HALF):
        width = 4 if kind == RAW else 2
        rows = np.frombuffer(body[: num * 4 * width], f"<f{width}").astype(np.float32)
        return rows.reshape(-1, 4), [NAMES[code] for code in body[num * 4 * width :]]
    if kind == ARROW:
        table = pyarrow.ipc.open_stream(body).read_all()
        table.validate(full=True)
        assert table.column("vector").type == pyarrow.list_(pyarrow.float32(), 4)
        vectors, status = table.column("vector").to_pylist(), table.column("status").to_pylist()
    else:
        answer = (msgspec.json if kind == JSON else msgspec.msgpack).decode(body)
        vectors, status = answer["vectors"], answer["status"]
        if kind == MSGPACK:
            return np.frombuffer(vectors, "<f4").reshape(-1, 4), status
    return np.array([[np.nan] * 4 if row is None else row for row in vectors], np.float32).reshape(-1, 4), status


def expected(ids):
    rows = np.array([ROWS.get(int(i), [np.nan] * 4) for i in ids], np.float32).reshape(-1, 4)
    return rows, ["known" if int(i) in ROWS else "forgotten" if int(i) == 9 else "unknown" for i in ids]


@pytest.mark.parametrize("accept", [RAW, HALF, JSON, MSGPACK, ARROW])
@pytest.mark.parametrize("kind", [RAW, JSON, MSGPACK, ARROW])
def test_every_media_type_is_answered_in_every_media_type(attacked, kind, accept):
    connection = attacked.connect()
    for ids in ([1], [], MIXED, MIXED * 2_500):
        for asked in [ids] if kind == RAW else [ids, [str(i) for i in ids]]:
            content = request(encoded(kind, asked), kind=kind, extra=[f"Accept: {accept}"])
            for _ in range(2):  # the second time the head is known
                status, headers, body = connection.exchange(content)
                assert (status, headers["content-type"]) == (200, accept)
                rows, statuses = decoded(accept, body, len(ids))
                wanted_rows, wanted = expected(ids)
                assert statuses == wanted
                np.testing.assert_array_equal(rows, wanted_rows)


@pytest.mark.parametrize(
    "ids",
    [
        pyarrow.array([1, 2, 9], pyarrow.int32()),
        pyarrow.array([1, 2, 9], pyarrow.uint64()),
        pyarrow.array([2**63 + 1, 5], pyarrow.uint64()),
        pyarrow.array([1, None, 9]),
        pyarrow.array(["1", "a", "", "-7", "\u00e9", "x" * 100]),
        pyarrow.array(["1", "a"], pyarrow.large_string()),
        pyarrow.array(["1", None]),
        pyarrow.array(["zero", "1", "a", "b"]).slice(1, 2),
        pyarrow.chunked_array([["1", "a"], ["b"]]),
        pyarrow.chunked_array([[1], [2, 3]]),
    ],
)
def test_arrow_ids_of_every_type_equal_those_of_json(ids):
    asked = decode_request(MediaType(ARROW), arrow_stream(pyarrow.table({"id": ids, "other": [0.5] * len(ids)})), 10)
    assert asked.ids_N.tolist() == [encode_id(value)[0] for value in ids.to_pylist()]
    assert asked.raw_ids.tolist() == ids.to_pylist()


def test_every_route_counts_looked_up_rows_by_status(attacked):
    def counted():
        text = attacked.client.get("/metrics").text
        found = dict(re.findall(r'springtide_lookup_rows_total\{status="(\w+)"\} (\d+)', text))
        return np.array([int(found.get(name, 0)) for name in NAMES])

    before = counted()
    for n in MIXED:
        attacked.exchange(get(f"/v1/embeddings/user_id/{n}"))
        attacked.exchange(get(f"/v1/embeddings/user_id?id={n}"))
        attacked.exchange(get(f"/v1/embeddings/user_id/{n}/neighbors"))
    connection = attacked.connect()
    for kind in (RAW, JSON, MSGPACK, ARROW):
        for _ in range(2):
            connection.exchange(request(encoded(kind, MIXED), kind=kind))
    assert (counted() - before).tolist() == [2 * 11, 11, 0, 11]


def test_media_types_are_chosen_by_the_headers():
    assert parse_content_type("") == MediaType(JSON)
    assert parse_content_type("application/json; charset=utf-8") == MediaType(JSON)
    assert parse_content_type("Application/Octet-Stream;dtype=float16") == MediaType(RAW, True)
    assert negotiate_media_type("", MediaType(MSGPACK)) == MediaType(MSGPACK)
    assert negotiate_media_type("*/*", MediaType(RAW)) == MediaType(RAW)
    assert negotiate_media_type("text/html, application/octet-stream; dtype=float16", MediaType(JSON)) == MediaType(
        RAW, True
    )
    assert negotiate_media_type("application/msgpack;q=0.2, application/json;q=0.9", MediaType(RAW)) == MediaType(JSON)
    assert negotiate_media_type("application/json;q=0, application/msgpack", MediaType(JSON)) == MediaType(MSGPACK)
    assert negotiate_media_type(
        'application/octet-stream; q=0.5; dtype="float16", text/html', MediaType(JSON)
    ) == MediaType(RAW, True)
    with pytest.raises(ApiError, match="not supported"):
        negotiate_media_type("application/json;q=0.0", MediaType(JSON))
    with pytest.raises(ApiError) as caught:
        parse_content_type("text/csv")
    assert caught.value.status == 415
    with pytest.raises(ApiError) as caught:
        negotiate_media_type("text/html", MediaType(JSON))
    assert caught.value.status == 406
