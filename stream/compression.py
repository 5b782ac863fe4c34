"""Kafka's compression codecs, by pyarrow: its wheels bring all four, and it works without the GIL.

Formats: a record batch is one gzip, LZ4 or Zstandard stream, or Snappy: one raw block, or blocks in the framing of
xerial's snappy-java (a header of 16 bytes, then each block after its length, big-endian). pyarrow is imported at the
first compressed batch, because few processes need it.
"""

import struct
from typing import Any

from springtide.stream.errors import BatchTooLargeError, CorruptBatchError

CODEC_NAMES = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
MAX_BATCH_BYTES = 64 << 20
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 << 10
# independent blocks of 64 KiB, the only kind that Kafka's Java client reads; the last byte is the header's checksum
LZ4_HEADER, LZ4_BLOCK_BYTES, LZ4_STORED = b"\x04\x22\x4d\x18\x60\x40\x82", 64 << 10, 0x8000_0000
SMALLEST_READ_BYTES = 64 << 10


def decompress(codec: str, data: bytes | memoryview, *, max_bytes: int = MAX_BATCH_BYTES) -> bytes:
    """Decompress one batch's records.

    Raises CorruptBatchError, or BatchTooLargeError before more than about `max_bytes` are allocated.
    """
    import pyarrow

    try:
        if codec == "snappy":
            return _decompress_snappy(pyarrow, memoryview(data), max_bytes)
        parts, num_bytes = [], 0
        # grows with what is found: a few bytes may claim to hold gigabytes
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec) as stream:
            while part := stream.read(min(max(SMALLEST_READ_BYTES, 8 * len(data)), max_bytes + 1 - num_bytes)):
                parts.append(part)
                num_bytes += len(part)
                _check_size(num_bytes, max_bytes)
    except (OSError, ValueError) as error:
        raise CorruptBatchError(f"a batch compressed with {codec} cannot be decompressed: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def compress(codec: str, data: bytes) -> bytes:
    """Compress one batch's records, so that every Kafka client can read them."""
    import pyarrow

    if codec == "snappy":
        snappy = pyarrow.Codec("snappy")
        blocks = [snappy.compress(block, asbytes=True) for block in _blocks(data, XERIAL_BLOCK_BYTES)]
        return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    if codec == "lz4":
        parts = [LZ4_HEADER]
        lz4 = pyarrow.Codec("lz4_raw")
        for block in _blocks(data, LZ4_BLOCK_BYTES):
            compressed = lz4.compress(block, asbytes=True)
            is_smaller = len(compressed) < len(block)
            content = compressed if is_smaller else block
            parts += [struct.pack("<I", len(content) | (0 if is_smaller else LZ4_STORED)), content]
        return b"".join(parts) + struct.pack("<I", 0)
    compressed_data: bytes = pyarrow.compress(data, codec=codec, asbytes=True)
    return compressed_data


def decompress_old_lz4(data: bytes) -> bytes:
    """Decompress the LZ4 of message format 0, whose header checksum covers the wrong bytes; the right one is put in."""
    if len(data) < 7:
        raise CorruptBatchError("a batch compressed with lz4 cannot be decompressed: it ends within its header")
    has_content_size = data[4] & 0x08
    flags = data[4] & ~0x08
    hashed = 0x165667B1 + 2  # xxHash32 of two bytes
    for byte in (flags, data[5]):
        hashed = (hashed + byte * 0x165667B1) & 0xFFFFFFFF
        hashed = ((hashed << 11 | hashed >> 21) * 0x9E3779B1) & 0xFFFFFFFF
    hashed = ((hashed ^ hashed >> 15) * 0x85EBCA77) & 0xFFFFFFFF
    hashed = ((hashed ^ hashed >> 13) * 0xC2B2AE3D) & 0xFFFFFFFF
    checksum = (hashed ^ hashed >> 16) >> 8 & 0xFF
    return decompress("lz4", data[:4] + bytes([flags, data[5], checksum]) + data[15 if has_content_size else 7 :])


def _decompress_snappy(pyarrow: Any, data: memoryview, max_bytes: int) -> bytes:
    """Decompress a raw block, or the blocks of xerial's framing."""
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        blocks = [data]
    else:
        blocks, position = [], len(XERIAL_HEADER)
        while position < len(data):
            if position + 4 > len(data):
                raise ValueError("it ends within a block's length")
            length = struct.unpack_from(">i", data, position)[0]
            position += 4
            if not 0 < length <= len(data) - position:
                raise ValueError("a block's length leads outside the batch")
            blocks.append(data[position : position + length])
            position += length
    lengths = [_snappy_length(block) for block in blocks]
    _check_size(sum(lengths), max_bytes)
    snappy = pyarrow.Codec("snappy")
    return b"".join(
        snappy.decompress(block, length, asbytes=True) for block, length in zip(blocks, lengths, strict=True)
    )


def _snappy_length(block: memoryview) -> int:
    """The decompressed length that a raw block begins with, a varint of 32 bits."""
    length = 0
    for i, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return length
    raise ValueError("a block has no length")


def _blocks(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise BatchTooLargeError(
            f"a compressed batch holds more than {max_bytes >> 20} MiB: let the producer send smaller batches, "
            "or raise [source] max_message_bytes if one message is that large"
        )
