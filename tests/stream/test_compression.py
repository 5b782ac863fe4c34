"""Our codecs against pyarrow's streams, and against what other Kafka clients write."""

import random
import struct

import pyarrow
import pytest

from springtide.stream.compression import CODEC_NAMES, XERIAL_MAGIC, compress, decompress, decompress_old_lz4
from springtide.stream.errors import BatchTooLargeError, CorruptBatchError

CODECS = list(CODEC_NAMES.values())
RANDOM = random.Random(1).randbytes(200_000)
TEXTS = [b"", b"a", b"abc" * 100_000, RANDOM, RANDOM[:65536], RANDOM[:1000] + bytes(150_000)]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_compressed_comes_back(codec):
    for text in TEXTS:
        assert decompress(codec, compress(codec, text)) == text


@pytest.mark.parametrize("codec", CODECS)
def test_what_others_compress_is_read(codec):
    for text in TEXTS:
        assert decompress(codec, pyarrow.compress(text, codec=codec, asbytes=True)) == text


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_several_streams_in_a_row_are_one(codec):
    assert decompress(codec, compress(codec, b"one, ") + compress(codec, b"two")) == b"one, two"


def test_lz4_blocks_are_independent_as_kafkas_java_client_demands():
    content = compress("lz4", TEXTS[2])
    assert content[4] & 0x20
    assert pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "lz4").read() == TEXTS[2]


def test_snappy_is_framed_as_kafkas_java_client_does_it():
    assert compress("snappy", b"abc").startswith(XERIAL_MAGIC)


def test_lz4_of_message_format_0_is_read_whatever_its_header_checksum():
    content = compress("lz4", TEXTS[2])
    with_size = content[:4] + bytes([content[4] | 0x08]) + content[5:6] + bytes(8) + content[6:]
    for header_checksum in (0, 1, 0x82):
        for start in (content, with_size):
            place = 14 if start is with_size else 6
            assert decompress_old_lz4(start[:place] + bytes([header_checksum]) + start[place + 1 :]) == TEXTS[2]
    with pytest.raises(CorruptBatchError, match="within its header"):
        decompress_old_lz4(content[:5])


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_cut_short_is_corrupt(codec):
    content = compress(codec, TEXTS[2])
    for length in (1, 5, 17, 19, 30, len(content) // 2, len(content) - 1):
        with pytest.raises(CorruptBatchError, match=f"compressed with {codec} cannot be decompressed"):
            decompress(codec, content[:length])


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_holds(codec):
    content = compress(codec, bytes(3 << 20))
    assert decompress(codec, content, max_bytes=3 << 20) == bytes(3 << 20)
    with pytest.raises(BatchTooLargeError, match="more than 2 MiB"):
        decompress(codec, content, max_bytes=2 << 20)


def test_a_snappy_block_that_claims_to_hold_gigabytes_is_refused_unread():
    claim = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(BatchTooLargeError):
        decompress("snappy", claim)
    framed = compress("snappy", b"")[:16] + struct.pack(">i", len(claim)) + claim
    with pytest.raises(BatchTooLargeError):
        decompress("snappy", framed)
