import json

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from springtide.kernels.cpu.serving.parse_ids import NOT_PLAIN, read_json_ids, read_msgpack_ids, read_text_ids
from springtide_client.keys import encode_id

INT64 = st.integers(-(2**63), 2**63 - 1)
SOME = [0, 1, -1, 31, -32, -33, 127, 128, -128, -129, 255, 256, 65_535, 65_536, -32_769, 2**31, 2**32, -(2**31) - 1]


def read(reader, content: bytes, room: int = 100):
    ids = np.full(room, 77, np.int64)
    count = reader(np.frombuffer(content, np.uint8), ids)
    return None if count == NOT_PLAIN else ids[:count].tolist()


@given(st.lists(INT64, max_size=60))
@example([2**63 - 1, -(2**63), *SOME])
def test_integers_are_read(ids) -> None:
    assert read(read_json_ids, msgspec.json.encode(ids)) == ids
    assert read(read_json_ids, json.dumps(ids, indent=2).encode()) == ids
    assert read(read_msgpack_ids, msgspec.msgpack.encode(ids)) == ids


@given(st.text('0123456789-+.eE,[] \t\n"a', max_size=24))
@example("[-]")
@example("[-0]")
@example("[01]")
@example("[1,]")
@example("[1 2]")
@example("[9223372036854775808]")
@example("[-9223372036854775809]")
@example("[99999999999999999999]")
def test_text_is_read_as_json_reads_it_or_not_at_all(text) -> None:
    found = read(read_json_ids, text.encode())
    if found is not None:
        assert found == json.loads(text)
        assert all(type(value) is int for value in json.loads(text))


@given(st.binary(max_size=24))
@example(b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff")
def test_bytes_are_read_as_msgpack_reads_them_or_not_at_all(content) -> None:
    found = read(read_msgpack_ids, content)
    if found is not None:
        assert found == msgspec.msgpack.decode(content)


@pytest.mark.parametrize("other", [1.5, "1", None, True, 2**63, [1], {}])
def test_anything_else_is_left_to_others(other) -> None:
    assert read(read_json_ids, msgspec.json.encode([1, other])) is None
    assert read(read_msgpack_ids, msgspec.msgpack.encode([1, other])) is None


def test_more_than_there_is_room_for_is_left_to_others() -> None:
    for encode, reader in ((msgspec.json.encode, read_json_ids), (msgspec.msgpack.encode, read_msgpack_ids)):
        assert read(reader, encode([1, 2, 3]), room=3) == [1, 2, 3]
        assert read(reader, encode([1, 2, 3]), room=2) is None
        assert read(reader, encode(list(range(70_000))), room=70_000) == list(range(70_000))


def test_longer_msgpack_heads() -> None:
    assert read(read_msgpack_ids, b"\xdd\x00\x00\x00\x02\x05\xff") == [5, -1]
    assert read(read_msgpack_ids, b"\xdc\x00\x02\x05\xff") == [5, -1]
    for cut in (b"", b"\xdc", b"\xdc\x00", b"\xdd\x00\x00\x00", b"\x92\x01", b"\x91\xcd\x01", b"\x91\x01\x01"):
        assert read(read_msgpack_ids, cut) is None


@given(st.lists(st.text("0123456789-+ a\u00e9", max_size=22) | st.text(max_size=40), max_size=20))
@example(["0", "-0", "00", "-1", "-", "", "9223372036854775807", "9223372036854775808", "-9223372036854775808"])
@example(["-9223372036854775809", "99999999999999999999", "09223372036854775807", "18446744073709551616", "1_0"])
def test_texts_have_the_ids_that_the_client_gives_them(texts) -> None:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    found = read_text_ids(np.frombuffer(b"".join(encoded) or b"\0", np.uint8), offsets)
    assert found.tolist() == [encode_id(text)[0] for text in texts]
