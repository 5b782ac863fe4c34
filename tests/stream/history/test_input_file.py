"""Files as JSON messages: order kept, nulls where the file has none, ids as the file has them."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from springtide.stream.errors import InputFileError
from springtide.stream.history.input_file import InputFile


def messages(path: Path, key: str | None = None) -> list[Any]:
    return [json.loads(row.value) for row in InputFile(path, key=key).rows()]


def test_csv_cells_stay_strings_and_empty_ones_become_null(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text('\ufeffuser_id,name,click\n007,"a, ""b""\nc",1\n,,0\n8\n', encoding="utf-8")
    assert messages(path) == [
        {"user_id": "007", "name": 'a, "b"\nc', "click": "1"},
        {"user_id": None, "name": None, "click": "0"},
        {"user_id": "8", "name": None, "click": None},
    ]


def test_a_quoted_cell_may_have_several_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"x\ny",1\n2,"z\n"')
    assert [row.value for row in InputFile(tmp_path / "a.csv").rows()] == [
        b'{"a":"x\\ny","b":"1"}',
        b'{"a":"2","b":"z\\n"}',
    ]


def test_tsv_has_no_quoting(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text('query\tclick\n"open\t1\n')
    assert messages(path) == [{"query": '"open', "click": "1"}]


def test_jsonl_is_sent_unchanged_except_blank_lines_and_nan(tmp_path: Path) -> None:
    path = tmp_path / "clicks.jsonl"
    path.write_bytes(b'{"a": 9007199254740993, "b": "NaN"}\n\n{"a": NaN, "b": [1, -Infinity]}\r\n{broken NaN\n{"a": 1}')
    values = [row.value for row in InputFile(path).rows()]
    assert json.loads(values[0]) == {"a": 9007199254740993, "b": "NaN"}
    assert json.loads(values[1]) == {"a": None, "b": [1, None]}
    assert values[2:] == [b"{broken NaN", b'{"a": 1}']


def test_parquet_keeps_ids_lists_and_strings_and_converts_nan_and_times(tmp_path: Path) -> None:
    path = tmp_path / "clicks.parquet"
    columns = {
        "id": pa.array([2**60 + 1, None], pa.int64()),
        "text": ["01", None],
        "number": pa.array([float("nan"), 1.5], pa.float32()),
        "tags": pa.array([["x", None], None], pa.list_(pa.string())),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", tz="UTC")),
        "flag": [True, None],
    }
    pyarrow.parquet.write_table(pa.table(columns), path)
    assert messages(path) == [
        {"id": 2**60 + 1, "text": "01", "number": None, "tags": ["x", None], "at": 1767225600000, "flag": True},
        {"id": None, "text": None, "number": 1.5, "tags": None, "at": None, "flag": None},
    ]


@pytest.mark.parametrize("ending", [".csv.gz", ".jsonl.gz"])
def test_gzipped_files_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"clicks{ending}"
    text = "a\n1\n2\n" if "csv" in ending else '{"a": "1"}\n{"a": "2"}\n'
    path.write_bytes(gzip.compress(text.encode()))
    assert messages(path) == [{"a": "1"}, {"a": "2"}]


def test_a_key_is_the_string_in_its_column(tmp_path: Path) -> None:
    csv, jsonl = tmp_path / "a.csv", tmp_path / "a.jsonl"
    csv.write_text("u,v\n7,1\n,2\n")
    jsonl.write_text('{"u": 7}\n{"u": "x"}\n{"v": 1}\nbroken\n')
    assert [row.key for row in InputFile(csv, key="u").rows()] == [b"7", None]
    assert [row.key for row in InputFile(jsonl, key="u").rows()] == [b"7", b"x", None, None]


def test_a_later_row_with_too_many_cells_is_a_message_that_no_trainer_learns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3,4,5\n6,7\n")
    assert messages(path) == [{"a": "1", "b": "2"}, ["3", "4", "5"], {"a": "6", "b": "7"}]
    assert [row.key for row in InputFile(path, key="a").rows()] == [b"1", None, b"6"]


@pytest.mark.parametrize(
    ("name", "content", "key", "words"),
    [
        ("a.csv", b"", None, "its first line must name the columns"),
        ("a.csv", b"a,b\n1,2,3\n", None, "line 2: 3 cells, but 2 columns"),
        ("a.csv", b"a;b\n1;2\n", None, "one column, 'a;b'.* separated by ';'"),
        ("a.tsv", b"a,b\n1,2\n", None, "one column, 'a,b'.* separated by ','"),
        ("a.csv", b"a\n\xff\n", None, r"is not UTF-8 .b'.xff'.: convert it"),
        ("a.csv", b'a,b\n1,2\n3,"4\n5,6\n', None, "line 3: a quote is not closed: 2 lines would be one row"),
        ("a.csv", b'a,b\n1,2\n"3,4\n5,6\n"7,8\n', None, "line 3: a quote is not closed: 3 lines would be one row"),
        ("a.csv", b"a,b,a\n1,2,3\n", None, "two columns 'a'"),
        ("a.csv", b"a\n1\n", "b", "no such column, only a"),
        ("a.parquet", b"nothing", None, "is not a valid Parquet file"),
        ("a.xlsx", b"", None, "rename it"),
        ("a.csv.gz", b"not zipped", None, "line"),
    ],
)
def test_an_unreadable_file_is_a_one_line_error(
    tmp_path: Path, name: str, content: bytes, key: str | None, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=words) as caught:
        list(InputFile(path, key=key).rows())
    assert "\n" not in str(caught.value)


def test_the_fraction_read_grows_to_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 50_000)
    parts = [row.fraction for row in InputFile(path).rows()]
    assert parts == sorted(parts)
    assert parts[0] < 0.5
    assert parts[-1] == 1.0
