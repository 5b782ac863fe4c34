"""Records of the log as whole byte strings."""

from collections.abc import Mapping

from springtide_client.format.records import HEADER, Record, VersionMeta, encode_pieces, parse_header
from springtide_client.format.tensors import Array


def encode_record(
    epoch: int, number: int, parent: int, meta: VersionMeta, tensors: Mapping[str, Array]
) -> tuple[bytes, int]:
    """Return a record's frame and its checksum."""
    pieces, checksum = encode_pieces(epoch, number, parent, meta, tensors)
    return b"".join(pieces), checksum


def decode_record(data: bytes | bytearray, offset: int = 0) -> tuple[Record, int] | None:
    """Return the record at `offset` and the offset of its end; None when the bytes end before it."""
    start = offset + HEADER.size
    if start > len(data):
        return None
    header = parse_header(bytes(data[offset:start]))
    end = start + header.length
    return None if end > len(data) else (Record.verify_payload(header, bytes(data[start:end])), end)
