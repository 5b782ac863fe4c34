"""The tensor layout: arrays decode to what was encoded, aligned, and corruption is an error."""

import errno
import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide_client.errors import LogError
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import (
    BFLOAT16,
    DTYPES,
    decode_tensors,
    encode_tensors,
    from_bfloat16,
    map_tensors,
    shape_of,
    to_bfloat16,
)
from tests.support.descriptors import open_files


def joined(tensors: dict[str, np.ndarray]) -> bytes:
    return b"".join(encode_tensors(tensors))


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_arrays_of_every_dtype_and_shape_decode_aligned(shapes: dict[str, tuple[str, list[int]]]) -> None:
    random = np.random.default_rng(0)
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        numbers = random.integers(0, 2, shape)
        tensors[name] = to_bfloat16(numbers) if dtype == "BF16" else numbers.astype(DTYPES[dtype]).reshape(shape)
    data = joined(tensors)
    read, metadata = decode_tensors(data)
    assert metadata == {}
    assert set(read) == set(tensors)
    for name, array in tensors.items():
        if array.dtype == BFLOAT16:
            array = from_bfloat16(array)
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()
        assert read[name].flags.aligned
        assert not read[name].flags.writeable


def test_the_header_follows_the_safetensors_format() -> None:
    data = joined({"narrow": np.ones(3, np.uint8), "wide": np.ones((2, 2), np.float64)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header["wide"] == {"dtype": "F64", "shape": [2, 2], "data_offsets": [0, 32]}
    assert header["narrow"] == {"dtype": "U8", "shape": [3], "data_offsets": [32, 35]}
    assert len(data) == 8 + length + 35


def test_strided_and_scalar_arrays_are_written_by_value() -> None:
    columns = np.arange(12, dtype=np.float32).reshape(3, 4).T
    read, _ = decode_tensors(joined({"columns": columns, "scalar": np.array(7, np.int64)}))
    np.testing.assert_array_equal(read["columns"], columns)
    assert read["scalar"].shape == ()
    assert read["scalar"] == 7


@pytest.mark.parametrize("fails", ["ftruncate", "fsync"])
def test_a_full_disk_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, fails, refuse)
    with pytest.raises(OSError, match="full") as caught:
        TensorWriter(tmp_path / "t", {"a": shape_of(np.ones(3))}).close()
    monkeypatch.undo()
    assert open_files(tmp_path) == [], caught  # `caught` keeps the frames of the failed writer alive


def test_a_dtype_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="complex"):
        joined({"x": np.ones(1, np.complex64)})


@pytest.mark.parametrize("cut", [0, 4, 8, 40])
def test_a_truncated_file_is_an_error(cut: int) -> None:
    with pytest.raises(LogError):
        decode_tensors(joined({"x": np.arange(100)})[:cut])


def test_a_tensor_outside_its_file_is_an_error() -> None:
    data = joined({"x": np.arange(4)})
    with pytest.raises(LogError, match="outside"):
        decode_tensors(data[:-1])


def test_a_file_written_in_pieces_equals_one_written_whole(tmp_path) -> None:
    tensors = {"value": np.arange(40, dtype=np.float32).reshape(10, 4), "id": np.arange(10)}
    writer = TensorWriter(tmp_path / "x", {name: shape_of(array) for name, array in tensors.items()})
    for name, array in tensors.items():
        writer.write(name, 5, array[5:])
    writer.write_block(0, {name: array[:5] for name, array in tensors.items()})
    with pytest.raises(ValueError, match="does not fit"):
        writer.write("id", 8, np.arange(3))
    writer.close()
    assert (tmp_path / "x").read_bytes() == joined(tensors)
    np.testing.assert_array_equal(map_tensors(tmp_path / "x")["value"], tensors["value"])


def test_a_mapped_file_may_be_unlinked(tmp_path) -> None:
    path = tmp_path / "x"
    path.write_bytes(joined({"id": np.arange(10)}))
    ids = map_tensors(path)["id"]
    path.unlink()
    np.testing.assert_array_equal(ids, np.arange(10))


def test_the_checksum_of_a_file_written_in_order_is_known_without_reading_it(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {"wide": random.random((3000, 100)), "flags": random.integers(0, 9, 3000).astype(np.uint8)}
    shapes = {name: shape_of(array) for name, array in tensors.items()}
    writer = TensorWriter(tmp_path / "x", shapes)
    for start, stop in ((0, 1000), (1000, 3000)):
        assert writer.crc32 is None  # not all of it is there
        writer.write_block(start, {name: array[start:stop] for name, array in tensors.items()})
    writer.close()
    assert writer.crc32 == zlib.crc32((tmp_path / "x").read_bytes())
    assert writer.num_bytes == (tmp_path / "x").stat().st_size
    backwards = TensorWriter(tmp_path / "y", shapes)
    for start in (1000, 0):
        for name, array in tensors.items():
            backwards.write(name, start, array[start : 1000 if start == 0 else 3000])
    backwards.close()
    assert backwards.crc32 is None
    assert (tmp_path / "y").read_bytes() == (tmp_path / "x").read_bytes()


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32)
    numbers = np.concatenate([bits.view(np.float32), np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)])
    expected = torch.from_numpy(numbers).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(numbers)), expected)
    read, _ = decode_tensors(joined({"a": to_bfloat16(numbers)}))
    np.testing.assert_array_equal(read["a"], expected)
