"""A frame shows whether it is complete, intact, and whose child it is."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.records import HEADER, MAGIC, CommandEntry, Head, VersionMeta, parse_header, version_name
from tests.support.records import decode_record, encode_record

META = VersionMeta(
    created_ms=5,
    positions={"clicks/0": {"topic_id": "t", "offset": 17}},
    expiry_cutoffs={"3": 99},
    scores={"whole": {"auc": None}},
    executed_commands=[CommandEntry(id="a", kind="forget")],
)
TENSORS = {"rows.id": np.arange(5, dtype=np.int64), "rows.value": np.ones((5, 3), np.float32)}


def frame() -> bytes:
    return encode_record(2, (2 << 32) + 7, 12345, META, TENSORS)[0]


def test_a_record_decodes_to_what_was_encoded() -> None:
    data, checksum = encode_record(2, (2 << 32) + 7, 12345, META, TENSORS)
    record, end = decode_record(b"x" * 3 + data, 3)
    assert end == 3 + len(data)
    assert (record.epoch, record.number, record.parent, record.checksum) == (2, (2 << 32) + 7, 12345, checksum)
    assert record.meta == META
    np.testing.assert_array_equal(record.tensors()["rows.value"], TENSORS["rows.value"])
    assert record.num_bytes == len(data)


def test_the_frame_of_a_decoded_record_equals_the_original() -> None:
    record, _ = decode_record(frame())
    assert record.frame() == frame()
    assert len(record.header) == HEADER.size


@given(st.integers(0, len(frame()) - 1))
def test_a_cut_record_is_incomplete(cut: int) -> None:
    assert decode_record(frame()[:cut]) is None


@given(st.integers(0, len(frame()) * 8 - 1))
def test_any_flipped_bit_is_detected(bit: int) -> None:
    data = bytearray(frame())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecordError):
        decode_record(data)


def test_the_checksum_depends_on_the_parent_and_on_the_payload() -> None:
    checksums = {
        encode_record(1, 1 << 32, parent, VersionMeta(step=step), {})[1] for parent in (0, 1) for step in (0, 1)
    }
    assert len(checksums) == 4


def test_the_arrays_of_a_record_are_aligned_at_any_offset() -> None:
    for shift in range(8):
        record, _ = decode_record(b"x" * shift + frame(), shift)
        assert all(array.flags.aligned for array in record.tensors().values())


def test_versions_are_named_by_epoch_and_count() -> None:
    assert version_name((3 << 32) + 41) == "3.41"
    assert str(Head(3 << 32, 0)) == "3.0"


def test_a_whole_record_of_another_format_is_refused_with_what_to_do() -> None:
    header = bytearray(frame()[: HEADER.size])
    header[: len(MAGIC)] = MAGIC[:-1] + b"1"
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    with pytest.raises(LogError, match="has format 1, this program reads format 2: start a new log") as caught:
        parse_header(bytes(header))
    assert not isinstance(caught.value, CorruptRecordError)
