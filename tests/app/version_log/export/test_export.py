"""Exported files are complete, readable by other tools, and equal to the log."""

import errno
import json
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from springtide.app.errors import UserError
from springtide.app.models.config import ModelConfig
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.export import export as export_module
from springtide.app.version_log.export.export import ExportConfig, export, format_of, write_whole_file
from springtide.app.version_log.export.snapshot_file import SnapshotFile, view_at_version
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_string
from springtide_client.log.base import ModelIdentity
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import DIM, FEATURES, SCHEMA, TABLE, TABLES, WriterLog, config


@pytest.fixture(scope="module")
def program() -> tuple[bytes, dict[str, np.ndarray]]:
    spec = ModelSpec.of(SCHEMA, DIM)
    model = build_model(ModelConfig(name="logistic"), spec, seed=0)
    return export_model(model, spec), {f"dense.{name}": value.numpy() for name, value in model.state_dict().items()}


@pytest.fixture
def made(log: WriterLog, program) -> RandomVersions:
    """Write a log with a model, two bases, and versions after the newer one."""
    writer = LogWriter.open(config(log.path), schema=SCHEMA)
    image = BaseImage(
        head=writer.first_base_head,
        schema=SCHEMA,
        table=TableImage(spec=TABLE),
        model=ModelIdentity(name="logistic"),
        meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
        dense=program[1],
        program=program[0],
    )
    write_base(log.path, image)
    writer.start_after(writer.first_base_head)
    with writer:
        made = RandomVersions(log, writer)
        made.write(12)
        made.compact()
        made.write(6)
        texts = {
            "texts.feature": np.array([0], np.uint16),
            "texts.id": np.array([hash_string(b"blue")], np.int64),
            "texts.offsets": np.array([0, 4], np.int64),
            "texts.bytes": np.frombuffer(b"blue", np.uint8),
        }
        made.now[0, hash_string(b"blue")] = (5.0, 10_000)
        made.append({(0, hash_string(b"blue")): (5.0, 10_000)}, [], texts)
        writer.sync()
    return made


def table_of(path: Path) -> pa.Table:
    return parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("name", ["latest", "-3", "1.5", "oldest"])
def test_arrow_and_parquet_hold_the_rows_of_the_version(made, tmp_path, format: str, name: str) -> None:
    index = LogIndex(made.log.directory)
    number = index.resolve(name)
    path = tmp_path / f"rows.{format}"
    num_rows = export(index, ExportConfig(format=format, version=number), path, force=False)
    table = table_of(path)
    assert table.schema.names == ["feature", "id", "id_string", "vector", "count", "last_seen_ms"]
    assert table.schema.field("vector").type.list_size == DIM
    features = {name: number for number, name in enumerate(SCHEMA.features)}
    found = {
        (features[row["feature"]], row["id"]): (row["vector"], row["count"], row["last_seen_ms"], row["id_string"])
        for row in table.to_pylist()
    }
    assert len(found) == num_rows == len(table)
    blue = hash_string(b"blue")
    assert found == {
        key: ([value, -value], int(value), seen, "blue" if key[1] == blue else None)
        for key, (value, seen) in made.worlds[number].items()
    }
    assert json.loads(table.schema.metadata[b"springtide"])["version"] == number
    assert list(tmp_path.glob(".rows*")) == []


def test_torch_loads_its_file_with_weights_only(made, tmp_path, program) -> None:
    index = LogIndex(made.log.directory)
    number = index.resolve("latest")
    path = tmp_path / "model.pt"
    assert export(index, ExportConfig(format="torch", version=number), path, force=False) == len(made.worlds[number])
    loaded = torch.load(path, weights_only=True)
    assert json.loads(loaded["manifest"])["version"] == number
    assert {f"dense.{name}" for name in loaded["dense"]} == set(program[1])
    found = {}
    for feature, columns in loaded["rows"].items():
        for i, row_id in enumerate(columns["id"].tolist()):
            row = (columns["vector"][i].tolist(), columns["count"][i].item(), columns["last_seen_ms"][i].item())
            found[SCHEMA.number(feature), row_id] = row
    assert found == {k: ([v, -v], int(v), seen) for k, (v, seen) in made.worlds[number].items()}
    users = loaded["rows"]["user_id"]
    at = users["id"].tolist().index(hash_string(b"blue"))
    begin, end = users["id_string_offsets"][at : at + 2].tolist()
    assert bytes(users["id_string_bytes"][begin:end].tolist()) == b"blue"
    assert "id_string_bytes" not in loaded["rows"]["item_id"]


@pytest.fixture
def tables(tmp_path: Path) -> RandomVersions:
    """A log of three tables."""
    log = WriterLog(tmp_path / "log", tables=TABLES)
    with log.writer() as writer:
        made = RandomVersions(log, writer, features=FEATURES)
        made.write(12)
        made.compact()
        made.write(6)
        writer.sync()
    return made


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_each_table_has_a_column_of_vectors(tables: RandomVersions, tmp_path: Path, format: str) -> None:
    index = LogIndex(tables.log.directory)
    number, path = index.numbers[-1], tmp_path / f"rows.{format}"
    num_rows = export(index, ExportConfig(format=format, version=number), path, force=False)
    table = table_of(path)
    columns = {"user_id": "vector", "item_id": "vector_dim3", "crosses": "vector_crosses"}
    numbers = dict(zip(columns, FEATURES, strict=True))
    found = {}
    for row in table.to_pylist():
        vectors = {name: row[name] for name in columns.values() if row[name] is not None}
        assert list(vectors) == [columns[row["feature"]]]
        found[numbers[row["feature"]], row["id"]] = next(iter(vectors.values()))
    assert len(found) == num_rows == len(tables.now)
    assert found == {
        key: [value, -value, 0] if key[0] == 1 else [value, -value] for key, (value, _) in tables.now.items()
    }
    assert json.loads(table.schema.metadata[b"springtide"])["tables"]["dim3"]["features"] == [1]
    export(index, ExportConfig(format=format, version=number, feature=1), path, force=True)
    items = table_of(path)
    assert items.schema.field("vector").type.list_size == 3
    assert items["feature"].unique().to_pylist() == ["item_id"]


def test_torch_has_the_vectors_of_each_feature_as_wide_as_they_are(tables: RandomVersions, tmp_path: Path) -> None:
    index, path = LogIndex(tables.log.directory), tmp_path / "model.pt"
    export(index, ExportConfig(format="torch", version=index.numbers[-1]), path, force=False)
    rows = torch.load(path, weights_only=True)["rows"]
    assert {name: columns["vector"].shape[1] for name, columns in rows.items()} == {
        "user_id": 2,
        "item_id": 3,
        "crosses": 2,
    }
    assert sum(len(columns["id"]) for columns in rows.values()) == len(tables.now)


def test_safetensors_equals_the_snapshot_of_a_server(made, tmp_path) -> None:
    index = LogIndex(made.log.directory)
    for name in ("latest", "1.7"):
        number = index.resolve(name)
        for with_rows in (True, False):
            path = tmp_path / f"{name}-{with_rows}.safetensors"
            export(index, ExportConfig(format="safetensors", version=number, with_rows=with_rows), path, force=False)
            view = view_at_version(made.log.directory, number)
            assert view is not None
            SnapshotFile.of(view, made.log.directory, with_rows=with_rows).write(tmp_path / "served")
            assert path.read_bytes() == (tmp_path / "served").read_bytes()


def test_one_feature_or_no_rows_can_be_exported(made, tmp_path) -> None:
    index = LogIndex(made.log.directory)
    number = index.resolve("latest")
    path = tmp_path / "items.parquet"
    export(index, ExportConfig(format="parquet", version=number, feature=1), path, force=False)
    assert set(parquet.read_table(path)["feature"].to_pylist()) == {"item_id"}
    export(index, ExportConfig(format="torch", version=number, feature=1), tmp_path / "items.pt", force=False)
    assert list(torch.load(tmp_path / "items.pt", weights_only=True)["rows"]) == ["item_id"]
    export(index, ExportConfig(format="torch", version=number, with_rows=False), tmp_path / "dense.pt", force=False)
    assert torch.load(tmp_path / "dense.pt", weights_only=True)["rows"] == {}
    for wrong in (
        {"format": "safetensors", "feature": 1},
        {"format": "arrow", "with_rows": False},
        {"format": "torch", "feature": 1, "with_rows": False},
    ):
        with pytest.raises(UserError):
            ExportConfig(version=number, **wrong)


def test_an_export_in_key_ranges_writes_the_same_file(made, tmp_path, monkeypatch) -> None:
    index = LogIndex(made.log.directory)
    config = ExportConfig(format="arrow", version=index.resolve("latest"))
    export(index, config, tmp_path / "whole.arrow", force=False)
    monkeypatch.setattr("springtide.app.version_log.read.version_range.RANGE_BYTES", 1_500)
    image = export_module.VersionImage
    monkeypatch.setattr(export_module, "VersionImage", lambda index, number: image(index, number, range_bytes=1_500))
    export(index, config, tmp_path / "parts.arrow", force=False)
    assert table_of(tmp_path / "parts.arrow").equals(table_of(tmp_path / "whole.arrow"))


def test_an_existing_file_is_replaced_only_with_force(made, tmp_path) -> None:
    index = LogIndex(made.log.directory)
    path = tmp_path / "rows.arrow"
    path.write_text("precious")
    settings = ExportConfig(format="arrow", version=index.resolve("latest"))
    with pytest.raises(UserError, match="--force"):
        export(index, settings, path, force=False)
    assert path.read_text() == "precious"
    export(index, settings, path, force=True)
    assert len(table_of(path))


def test_the_suffix_decides_the_format() -> None:
    assert [format_of(Path(f"a.{end}")) for end in ("safetensors", "arrow", "parquet", "pt")] == [
        "safetensors",
        "arrow",
        "parquet",
        "torch",
    ]
    with pytest.raises(UserError, match="--format"):
        format_of(Path("model.bin"))


def test_an_unusable_path_is_a_user_error(made, tmp_path) -> None:
    index = LogIndex(made.log.directory)
    settings = ExportConfig(format="arrow", version=index.resolve("latest"))
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "rows.arrow", "there is no folder")):
        with pytest.raises(UserError, match=words):
            export(index, settings, path, force=False)


def test_a_disk_error_says_what_to_do(tmp_path) -> None:
    reasons = {errno.ENOSPC: "its disk is full: make room", errno.EROFS: "choose another place"}
    for number, words in reasons.items():

        def refuse(draft: Path, number: int = number) -> int:
            draft.write_text("half")
            raise OSError(number, "refused")

        with pytest.raises(LogError, match=words):
            write_whole_file(tmp_path / "out", refuse, force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the garbage collector closes a file
@pytest.mark.parametrize("format", ["safetensors", "arrow", "parquet", "torch"])
def test_an_export_to_a_full_disk_leaves_no_file(made, tmp_path, format: str) -> None:
    """A limit on the size of files simulates the full disk."""
    index = LogIndex(made.log.directory)
    settings = ExportConfig(format=format, version=index.resolve("latest"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
    try:
        with pytest.raises(LogError, match="out cannot be written: file too large"):
            export(index, settings, tmp_path / "out", force=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in tmp_path.iterdir() if path != made.log.path] == []
