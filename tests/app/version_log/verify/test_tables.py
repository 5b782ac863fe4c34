"""Damage in the files of any table is found, refused by readers, and repaired by the next compaction."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.verify.verify import verify
from springtide_client.errors import LogError
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import VersionMeta
from springtide_client.keys import CROSSES
from springtide_client.log.base import MANIFEST, Base, read_base_manifest
from springtide_client.log.directory import LogDirectory
from tests.support.damage import flip, forge
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import FEATURES, SCHEMA, TABLES, WriterLog

ROW_FILES = ("rows.safetensors", "rows.dim3.safetensors", "rows.crosses.safetensors")
FILES = (*ROW_FILES, "optimizer.safetensors", "optimizer.dim3.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log with two bases and versions after them."""
    log = WriterLog(tmp_path_factory.mktemp("made") / "log", tables=TABLES)
    with log.writer() as writer:
        random = RandomVersions(log, writer, features=FEATURES)
        random.write(25)
        random.compact()
        random.write(3)
        writer.sync()
    return log.path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "log"))


def newest_base(path: Path) -> Path:
    return max(path.glob("base-*"))


def wrong(path: Path, *, deep: bool = False) -> list[tuple[str, str]]:
    return [(finding.file.rpartition("/")[2], finding.what) for finding in verify(LogDirectory(path), deep=deep).errors]


def test_a_log_of_several_tables_is_valid(path: Path) -> None:
    assert wrong(path, deep=True) == []
    base = Base.open(newest_base(path))
    assert sorted(name for name in base.manifest.files if name.startswith(("rows", "opt"))) == sorted(FILES)
    assert all(len(base.tables[name].rows) for name in ("", "dim3", "crosses"))
    lines = [str(finding) for finding in verify(LogDirectory(path), deep=True).all]
    assert any(f"{len(base)} rows compared" in line for line in lines), lines


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_truncated_file_is_found_and_not_opened(path: Path, name: str) -> None:
    file, oldest = newest_base(path) / name, min(path.glob("base-*"))
    os.truncate(file, file.stat().st_size - 1)
    for words in ("bytes, its manifest says", "it is missing"):
        found = wrong(path)
        assert [file for file, _ in found] == [name]
        assert words in found[0][1]
        with pytest.raises(LogError):
            Base.open(newest_base(path))
        base = LogDirectory(path).open_base()
        assert base.path == oldest
        file.unlink(missing_ok=True)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_and_the_next_base_is_made_without_it(path: Path, name: str) -> None:
    damaged = newest_base(path)
    flip(damaged / name, -3, 4)
    assert wrong(path) == [(name, "it does not match its checksum")]
    written = compact_log(LogDirectory(path), window_samples=100)
    assert written.name > damaged.name
    assert not damaged.exists()
    assert wrong(path, deep=True) == []  # it equals the one before the damaged with all versions since


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("rows.dim3.safetensors", "value", "its value differs"),
        ("rows.crosses.safetensors", "count", "its count differs"),
        ("optimizer.dim3.safetensors", "state", "its state differs"),
    ],
)
def test_a_wrong_row_of_any_table_is_found_by_replaying(path: Path, name: str, tensor: str, words: str) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[tensor].reshape(-1)[0] += 1

    forge(newest_base(path), name, change)
    assert wrong(path) == []
    ((file, what),) = wrong(path, deep=True)
    assert file == name
    assert words in what


def test_rows_in_the_wrong_table_are_found(path: Path) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["feature"][0] = CROSSES

    forge(newest_base(path), "rows.dim3.safetensors", change)
    assert {file for file, _ in wrong(path)} == {"rows.dim3.safetensors"}
    shutil.copy(newest_base(path) / "rows.crosses.safetensors", newest_base(path) / "rows.dim3.safetensors")
    forge(newest_base(path), "rows.dim3.safetensors", lambda arrays: None)
    assert "do not have the width" in wrong(path)[0][1]


@pytest.mark.parametrize(
    ("feature", "prefix", "width", "words"),
    [
        (1, "", 2, "rows of a feature that the main table does not hold"),
        (0, "dim3/", 3, "rows of a feature that the dim3 table does not hold"),
        (CROSSES, "crosses/", 3, "rows of width ((3,), (0,)) in a table crosses of 2 and 0"),
        (1, "dim9/", 9, "rows of a table 'dim9' that its base does not have"),
    ],
)
def test_a_version_with_rows_that_do_not_fit_its_tables_is_found(
    path: Path, feature: int, prefix: str, width: int, words: str
) -> None:
    columns = {
        "feature": np.array([feature], np.uint16),
        "id": np.array([77]),
        "value": np.zeros((1, width), np.float32),
        "state": np.zeros((1, {"": 1, "dim3/": 2}.get(prefix, 0)), np.float32),
        "count": np.array([1]),
        "last_seen": np.array([10_000]),
    }
    if prefix == "crosses/":
        del columns["state"]
    with WriterLog(path).open() as writer:
        meta = VersionMeta(samples_trained=100, fingerprint=SCHEMA.fingerprint(), expiry_cutoffs={"1": 9_999})
        writer.append(meta, {f"{prefix}rows.{name}": array for name, array in columns.items()})
        writer.sync()
    assert any(words in what for _, what in wrong(path)), wrong(path)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"dim3": [1], "crosses": [CROSSES, 1]}, "two tables hold the rows of feature 1"),
        ({"dim3": [1, 9], "crosses": [CROSSES]}, "the table dim3 holds feature 9, which is not in the schema"),
        ({"dim3": [1], "crosses": [CROSSES], "dim9": [0]}, "the table dim9 has no file rows.dim9.safetensors"),
    ],
)
def test_tables_that_do_not_fit_the_schema_or_the_files_are_found(
    path: Path, tables: dict[str, list[int]], words: str
) -> None:
    manifest = read_base_manifest(newest_base(path))
    specs = {
        name: replace(manifest.tables.get(name, manifest.table), features=features) for name, features in tables.items()
    }
    (newest_base(path) / MANIFEST).write_bytes(encode_checksummed_json(replace(manifest, tables=specs)))
    assert (MANIFEST, words) in [(file, what.removesuffix(": a feature has one table")) for file, what in wrong(path)]
