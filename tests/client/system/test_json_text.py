"""What is no JSON is one error, whatever is wrong with it."""

import msgspec
import pytest

from springtide_client.system.json_text import decode_json


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": "\xb1"}', b"\x00" * 8, b"[" * 100_000],
    ids=["empty", "cut", "latin-1", "zeros", "deep"],
)
def test_what_is_no_json_is_one_error(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"JSON is malformed|truncated"):
        decode_json(content)


def test_a_value_is_decoded_into_its_type() -> None:
    assert decode_json(b'{"a": [1, 2.5]}') == {"a": [1, 2.5]}
    assert decode_json(b"3", int) == 3
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'"3"', int)
