"""The files of a base with rows: their names, and which of them have keys of a range."""

import pytest

from springtide_client.log.row_files import optimizer_files, overlapping, rows_files
from springtide_client.rows.hash_range import NO_KEYS, HashRange, first_mixed


def test_one_file_has_the_plain_name_and_several_are_numbered() -> None:
    assert rows_files("") == ["rows.safetensors"]
    assert optimizer_files("dim8") == ["optimizer.dim8.safetensors"]
    assert rows_files("", 2) == ["rows-00001-of-00002.safetensors", "rows-00002-of-00002.safetensors"]
    assert optimizer_files("dim8", 3)[2] == "optimizer.dim8-00003-of-00003.safetensors"


@pytest.mark.parametrize("num_files", [1, 2, 3, 4, 7])
def test_a_range_needs_the_files_whose_keys_it_shares(num_files) -> None:
    bounds = [first_mixed(number, num_files) for number in range(num_files + 1)]
    for count in range(1, 9):
        for number in range(1, count + 1):
            own = HashRange(number, count)
            expected = [n for n in range(num_files) if bounds[n] < own.end and own.start < bounds[n + 1]]
            assert list(overlapping(num_files, own)) == expected
    assert not overlapping(num_files, NO_KEYS)
