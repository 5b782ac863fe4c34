"""Which files a pattern names, in which order; the same from S3, over HTTP."""

from pathlib import Path

import pytest

from springtide.stream.errors import HistoryError
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.files import find_files
from tests.stream.history.clicks import positions_in, reader, users_of, write_clicks
from tests.stream.history.s3_server import BUCKET, serve_s3

FILES = ["day=1/a.csv", "day=1/b.csv", "day=10/a.csv", "day=2/deep/a.csv", "top.csv", "_SUCCESS", ".hidden/a.csv"]


def names(path: object) -> list[str]:
    return [file.name for file in find_files(HistoryConfig(path=str(path)))]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", ["day=1/a.csv", "day=1/b.csv", "day=10/a.csv", "day=2/deep/a.csv", "top.csv"]),
        ("**", ["day=1/a.csv", "day=1/b.csv", "day=10/a.csv", "day=2/deep/a.csv", "top.csv"]),
        ("*.csv", ["top.csv"]),
        ("top.csv", ["top.csv"]),
        ("day=*/*.csv", ["day=1/a.csv", "day=1/b.csv", "day=10/a.csv"]),
        ("**/a.csv", ["day=1/a.csv", "day=10/a.csv", "day=2/deep/a.csv"]),
        ("day=[12]/**/a.csv", ["day=1/a.csv", "day=2/deep/a.csv"]),
        ("day=1", ["a.csv", "b.csv"]),
    ],
)
def test_a_pattern_names_files_below_the_folder_in_which_it_begins(
    tmp_path: Path, pattern: str, found: list[str]
) -> None:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a\n")
    assert names(tmp_path / pattern) == found


def test_no_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "*.csv", tmp_path / "nowhere", "nowhere://bucket/a"):
        with pytest.raises(HistoryError, match=r"\[history\] path .*(names no file|cannot be listed)"):
            names(path)


def test_a_history_on_s3_is_read_as_a_local_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    if not hasattr(fs, "S3FileSystem"):
        pytest.skip("this pyarrow has no S3 client")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for number, ending in enumerate(("parquet", "csv", "jsonl")):
        write_clicks(tmp_path / "clicks" / f"{number}.{ending}", range(10 * number, 10 * number + 10))
    with serve_s3(tmp_path) as server:
        uri = f"s3://{BUCKET}/clicks/*?region=eu-central-1&scheme=http&endpoint_override={server}"
        assert names(uri) == ["0.parquet", "1.csv", "2.jsonl"]
        whole = positions_in(reader(uri))
        assert [user for user, _ in whole] == list(range(30))
        for number in (4, 14, 24):
            assert users_of(reader(uri, whole[number][1])) == list(range(number + 1, 30))
