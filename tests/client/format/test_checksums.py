"""Checksums of concatenated bytes, from the checksums of their parts."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from springtide_client.format.checksums import combine_crc32


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_combined_checksums_equal_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    assert combine_crc32([(zlib.crc32(part), len(part)) for part in parts]) == zlib.crc32(b"".join(parts))


def test_checksums_of_long_parts_combine() -> None:
    long = bytes(range(256)) * 40_000
    assert combine_crc32([(zlib.crc32(long), len(long))] * 2) == zlib.crc32(long + long)
