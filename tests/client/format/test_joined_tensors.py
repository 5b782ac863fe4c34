"""Tensors in several files are one array to readers, mapped where the files have the places for it."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide_client.errors import LogError
from springtide_client.format.checksums import crc32_of_file
from springtide_client.format.joined_tensors import FileRows, map_joined
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import Arrays, TensorShape, map_tensors, shape_of


def columns(num_rows: int) -> Arrays:
    numbers = np.arange(num_rows, dtype=np.uint64)
    return {
        "mixed": numbers * 3,
        "feature": (numbers % 7).astype(np.uint16),
        "value": numbers[:, None].astype(np.float32) + np.arange(5, dtype=np.float32),
    }


def cut(arrays: Arrays, start: int, stop: int) -> Arrays:
    return {name: array[start:stop] for name, array in arrays.items()}


def write_parts(folder: Path, arrays: Arrays, counts: list[int], *, least_of_places: int = 0) -> list[Path]:
    """least_of_places: files of fewer rows have no places."""
    paths, start = [], 0
    for number, count in enumerate(counts):
        has_places = count >= least_of_places
        part = cut(arrays, start, start + count)
        places = {
            name: start * TensorShape(array.dtype, (1, *array.shape[1:])).num_bytes for name, array in part.items()
        }
        path = folder / f"{number}.safetensors"
        shapes = {name: shape_of(array) for name, array in part.items()}
        writer = TensorWriter(path, shapes, places=places if has_places else None)
        writer.write_block(0, part)
        crc32 = writer.crc32
        writer.close()
        assert crc32 == crc32_of_file(path)
        paths.append(path)
        start += count
    return paths


def mapped_lines(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.sampled_from([0, 1, 3, 2_000, 5_000, 9_999]), min_size=2, max_size=4),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=4, max_size=4),
    least_of_places=st.sampled_from([0, 4_000, 100_000]),
)
def test_any_rows_of_any_files_are_as_they_were_written(tmp_path_factory, counts, cuts, least_of_places) -> None:
    arrays = columns(sum(counts))
    paths = write_parts(tmp_path_factory.mktemp("parts"), arrays, counts, least_of_places=least_of_places)
    whole = map_joined([FileRows(path, None) for path in paths])
    assert list(whole) == ["mixed", "value", "feature"]
    slices = [slice(*sorted((int(a * n), int(b * n)))) for n, (a, b) in zip(counts, cuts, strict=False)]
    some = map_joined([FileRows(*file) for file in zip(paths, slices, strict=True)])
    starts = np.cumsum([0, *counts]).tolist()
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole[name], array)
        wanted = [array[start + rows.start : start + rows.stop] for start, rows in zip(starts, slices, strict=False)]
        np.testing.assert_array_equal(some[name], np.concatenate(wanted))
        assert some[name].dtype == array.dtype
        assert whole[name].flags.aligned
        assert not whole[name].flags.writeable


def test_the_pages_are_those_of_the_files_until_the_array_is_gone(tmp_path) -> None:
    paths = write_parts(tmp_path, columns(30_000), [10_000, 20_000])
    arrays = map_joined([FileRows(path, None) for path in paths])
    assert {path.name for path in paths} == {line.rpartition("/")[2] for line in mapped_lines(tmp_path)}
    for path in paths:
        path.unlink()
    np.testing.assert_array_equal(arrays["mixed"], columns(30_000)["mixed"])
    pages = arrays["value"].base
    assert isinstance(pages, mmap.mmap)
    pages.madvise(mmap.MADV_RANDOM)  # over files and copied pages alike
    del arrays, pages
    assert mapped_lines(tmp_path) == []


def test_a_small_file_without_places_keeps_no_larger_one_from_being_mapped(tmp_path) -> None:
    paths = write_parts(tmp_path, columns(30_100), [100, 20_000, 10_000], least_of_places=1_000)
    arrays = map_joined([FileRows(path, None) for path in paths])
    assert {line.rpartition("/")[2] for line in mapped_lines(tmp_path)} == {path.name for path in paths[1:]}
    np.testing.assert_array_equal(arrays["value"], columns(30_100)["value"])


def test_files_of_other_writers_are_read_wherever_they_have_their_numbers(tmp_path) -> None:
    paths = write_parts(tmp_path, columns(30_000), [10_000, 20_000])
    for path in paths:
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")  # of the header
        path.write_bytes((end - 7).to_bytes(8, "little") + content[8:end] + b" " + content[end:])
    arrays = map_joined([FileRows(path, None) for path in paths])
    for name, array in columns(30_000).items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].flags.aligned


def test_files_that_do_not_fit_together_are_refused(tmp_path) -> None:
    first, second = write_parts(tmp_path, columns(20), [10, 10])
    (tmp_path / "narrow").mkdir()
    (narrow,) = write_parts(tmp_path / "narrow", {**columns(10), "value": columns(10)["value"][:, :2]}, [10])
    with pytest.raises(LogError, match="'value' has not the same type"):
        map_joined([FileRows(first, None), FileRows(narrow, None)])
    second.write_bytes(b"1234")
    with pytest.raises(LogError, match="is truncated"):
        map_joined([FileRows(first, None), FileRows(second, None)])
    second.write_bytes(b"\xff" * 100)
    with pytest.raises(LogError, match="header"):
        map_joined([FileRows(first, None), FileRows(second, None)])
    assert len(map_tensors(first)["mixed"]) == 10
