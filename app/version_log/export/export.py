"""Export a version as one file: the model snapshot, or its rows for other tools. The file is complete or absent."""

# n rows of a batch, D dimension
# n rows of a feature, D dimension of its rows
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from springtide.app.errors import UserError
from springtide.app.version_log.read.id_dictionary import IdDictionary, feature_name
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage
from springtide.app.version_log.tables import LogTable, table_holding
from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.keys import CROSSES
from springtide_client.rows.row_block import RowBlock
from springtide_client.system.files import fsync_folder, sync_file

BATCH_ROWS = 65_536
COLUMNS = {"id": "id", "vector": "value", "count": "count", "last_seen_ms": "last_seen"}
TYPES = {"id": np.int64, "vector": np.float32, "count": np.int64, "last_seen_ms": np.int64, "lengths": np.int64}
FORMATS = {"safetensors": ".safetensors", "arrow": ".arrow", "parquet": ".parquet", "torch": ".pt"}


def write_arrow(image: VersionImage, path: Path, feature: int | None) -> int:
    """Write an Arrow IPC file; return the number of rows."""
    schema, num_rows = arrow_schema(image, feature), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in _batches(image, schema, feature):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def write_parquet(image: VersionImage, path: Path, feature: int | None) -> int:
    """Write a Parquet file; return the number of rows."""
    schema, num_rows = arrow_schema(image, feature), 0
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as writer:
        for batch in _batches(image, schema, feature):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def vector_columns(image: VersionImage, feature: int | None) -> dict[str, LogTable]:
    """Return the columns with vectors, each of one table: `vector` for the main one, or for that of the only feature.

    The others are `vector_NAME`; in each row all but one are null.
    """
    if feature is not None:
        return {"vector": table_holding(image.tables, feature)}
    return {f"vector_{table.name}" if table.name else "vector": table for table in image.tables}


def arrow_schema(image: VersionImage, feature: int | None = None) -> Any:
    """Return the columns; `id_string` is null if the id is a number or its string is not known."""
    tables = vector_columns(image, feature)
    vectors = [
        pa.field(name, pa.list_(pa.field("item", pa.float32(), nullable=False), table.spec.dim), len(tables) > 1)
        for name, table in tables.items()
    ]
    fields = [
        pa.field("feature", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("id_string", pa.string()),
        *vectors,
        pa.field("count", pa.int64(), nullable=False),
        pa.field("last_seen_ms", pa.int64(), nullable=False),
    ]
    return pa.schema(fields, {"springtide": description(image)})


def description(image: VersionImage) -> str:
    """Return which version it is, as JSON."""
    base = image.base.manifest
    document = {
        "version": image.version,
        "name": version_name(image.version),
        "checksum": f"{image.checksum:016x}",
        "schema": base.schema,
        "table": base.table,
        "tables": base.tables,
        "model": base.model,
        "meta": image.meta,
    }
    return msgspec.json.encode(document).decode()


def _batches(image: VersionImage, schema: Any, feature: int | None) -> Iterator[Any]:
    finder = IdDictionary(image.base, image.versions)
    # the same dictionary in all batches: an Arrow file stores it once
    features = [*range(image.schema.unused_number), CROSSES]
    names = pa.array([feature_name(image.schema, one) for one in features], pa.string())
    for name, table in vector_columns(image, feature).items():
        for rows in image.rows(feature, table=table):
            for start in range(0, len(rows), BATCH_ROWS):
                yield _batch(rows.take(slice(start, start + BATCH_ROWS)), name, finder, names, schema)


def _batch(rows: RowBlock, column: str, finder: IdDictionary, names: Any, schema: Any) -> Any:
    """Return a batch of rows of one table, whose vectors are in `column`."""
    types = {field.name: field.type for field in schema if field.name.startswith("vector")}
    content = pa.array(np.ascontiguousarray(rows.value).reshape(-1))
    vectors = {name: pa.nulls(len(rows), type) for name, type in types.items()}
    vectors[column] = pa.FixedSizeListArray.from_arrays(content, type=types[column])
    places = np.minimum(rows.feature, len(names) - 1).astype(np.int16)  # crosses come last
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(places), names),
        pa.array(rows.id),
        pa.array(finder.find(rows.feature, rows.id), pa.string()),
        *vectors.values(),
        pa.array(rows.count),
        pa.array(rows.last_seen),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_torch(image: VersionImage, path: Path, feature: int | None, *, with_rows: bool) -> int:
    """`{"manifest": JSON, "dense": {name: tensor}, "rows": {feature: {column: tensor}}}`; returns the number of rows.

    Columns: `id` (n), `vector` (n, D), `count` (n), `last_seen_ms` (n); if the feature has string ids also
    `id_string_bytes` and `id_string_offsets` (n + 1): row i has `id_string_bytes[offsets[i]:offsets[i + 1]]`, empty if
    its id is a number. With one feature there is no dense part.
    """
    dense = {} if feature is not None else image.dense()
    document: dict[str, Any] = {
        "manifest": description(image),
        "dense": {name: torch.from_numpy(np.array(array)) for name, array in dense.items()},
    }
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        columns = _Columns(Path(folder))
        finder = IdDictionary(image.base, image.versions)
        for rows in image.rows(feature) if with_rows else ():
            for one in np.unique(rows.feature).tolist():
                columns.add(one, rows.where(rows.feature == one), finder)
        document["rows"] = {feature_name(image.schema, one): columns.tensors(one) for one in sorted(columns.num_rows)}
        with path.open("wb") as file:  # a file object: with a path torch.save hides the OSError of a full disk
            torch.save(document, file)
    return sum(columns.num_rows.values())


class _Columns:
    """Collects columns in temporary files, so that the rows need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self.num_rows: dict[int, int] = {}
        self._folder = folder
        self._dims: dict[int, int] = {}

    def add(self, feature: int, rows: RowBlock, finder: IdDictionary) -> None:
        """Append rows of one feature."""
        strings = [b"" if string is None else string.encode() for string in finder.find(rows.feature, rows.id)]
        for name, column in COLUMNS.items():
            self._append(feature, name, np.asarray(getattr(rows, column), TYPES[name], order="C").tobytes())
        self._append(feature, "lengths", np.array([len(string) for string in strings], np.int64).tobytes())
        self._append(feature, "strings", b"".join(strings))
        self._dims[feature] = rows.dim
        self.num_rows[feature] = self.num_rows.get(feature, 0) + len(rows)

    def tensors(self, feature: int) -> dict[str, torch.Tensor]:
        """Return the columns of a feature."""
        arrays = {name: np.memmap(self._folder / f"{feature}.{name}", dtype, "c") for name, dtype in TYPES.items()}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name in COLUMNS}
        tensors["vector"] = tensors["vector"].reshape(-1, self._dims[feature])
        lengths = arrays["lengths"]
        if lengths.any():
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            content = np.memmap(self._folder / f"{feature}.strings", np.uint8, "c")
            tensors |= {"id_string_bytes": torch.from_numpy(content), "id_string_offsets": torch.from_numpy(offsets)}
        return tensors

    def _append(self, feature: int, name: str, content: bytes) -> None:
        with (self._folder / f"{feature}.{name}").open("ab") as file:
            file.write(content)


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Options of an export; UserError if the format cannot hold it."""

    format: str
    version: int
    feature: int | None = None  # its number; None: all features
    with_rows: bool = True

    def __post_init__(self) -> None:
        if self.format == "safetensors" and self.feature is not None:
            raise UserError("--feature: the safetensors snapshot is a whole model: use arrow, parquet or torch")
        if self.format in ("arrow", "parquet") and not self.with_rows:
            raise UserError(f"--rows none: {self.format} holds only rows: use safetensors or torch")
        if self.feature is not None and not self.with_rows:
            raise UserError("--feature with --rows none leaves nothing to write")


def format_of(path: Path) -> str:
    """Return the format that the file's suffix names; UserError if it names none."""
    for name, suffix in FORMATS.items():
        if path.suffix == suffix:
            return name
    raise UserError(
        f"{path}: choose a format with --format {'|'.join(FORMATS)}, or end the name in {', '.join(FORMATS.values())}"
    )


def export(index: LogIndex, config: ExportConfig, path: Path, *, force: bool) -> int:
    """Write the file and return its number of rows; an existing file is replaced only with `force`."""
    check_target(path, force=force)
    if config.format == "safetensors":
        return write_whole_file(path, lambda draft: _write_snapshot(index, config, draft), force=force)
    image = VersionImage(index, config.version)
    write = {"arrow": write_arrow, "parquet": write_parquet}.get(config.format)
    if write is not None:
        return write_whole_file(path, lambda draft: write(image, draft, config.feature), force=force)
    return write_whole_file(
        path, lambda draft: write_torch(image, draft, config.feature, with_rows=config.with_rows), force=force
    )


def check_target(path: Path, *, force: bool) -> None:
    """Raise UserError if no file can be written at this path."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the name of a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}: create it first")
    if path.exists() and not force:
        raise UserError(f"{path} exists: choose another name, or replace it with --force")


def write_whole_file(path: Path, write: Callable[[Path], int], *, force: bool) -> int:
    """1. Write a draft. 2. fsync it. 3. Move it into place. LogError if the disk refuses; the draft is then deleted."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        result = write(draft)
        sync_file(draft)
        _move(draft, path, force=force)
        fsync_folder(path.parent)
        return result
    except OSError as error:
        raise LogError(f"{path} cannot be written: {_reason(error)}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _move(draft: Path, path: Path, *, force: bool) -> None:
    if force:
        draft.replace(path)
        return
    try:
        os.link(draft, path)  # unlike a rename, this never replaces a file created meanwhile
    except FileExistsError:
        check_target(path, force=False)
    except OSError:  # a file system without hard links
        check_target(path, force=False)
        draft.rename(path)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "its disk is full: make room, or choose another place"
    reason = str(error) if error.errno is None else os.strerror(error.errno).lower()
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{reason}: choose another place, or change the folder's permissions"
    return reason


def _write_snapshot(index: LogIndex, config: ExportConfig, draft: Path) -> int:
    from springtide.app.version_log.export.snapshot_file import SnapshotFile
    from springtide.app.version_log.read.version_range import RANGE_BYTES, VersionRange
    from springtide_client.follow.views import MemoryLimit
    from springtide_client.model.view import View

    base = index.base_before(config.version)
    view = View.open(base.path)
    for record in VersionRange(index, base.head.number, config.version).records():
        memory_bytes = view.parameters.num_bytes * 2 + RANGE_BYTES
        limit = MemoryLimit(memory_bytes=memory_bytes, folder=draft.parent)
        view = limit.apply(view.apply(record).merged())
    snapshot = SnapshotFile.of(view, index.directory, with_rows=config.with_rows)
    snapshot.write(draft)
    return snapshot.num_rows
