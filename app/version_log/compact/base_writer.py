"""Write a base: a folder that is complete and durable before readers can see it."""

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from springtide.app.version_log.compact.row_writer import RowWriter, TableImage
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.read.exact_state import is_exact_state
from springtide.app.version_log.tables import tables_from
from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.checksums import crc32_of_file
from springtide_client.format.records import EPOCH_SHIFT, Tip, VersionMeta
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import Array, Arrays, shape_of
from springtide_client.log.base import (
    DENSE,
    EXPORTS,
    ID_STRINGS,
    ITEMS,
    MANIFEST,
    MODEL,
    ONNX,
    SKETCH,
    STATE,
    BaseManifest,
    FileChecksum,
    ModelIdentity,
    TableSpec,
    read_base_manifest,
)
from springtide_client.log.listing import base_name
from springtide_client.rows.row_layer import RowLayer
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import fsync_folder


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """The contents of a base: everything at one version."""

    tip: Tip  # the version it holds
    schema: Schema
    table: TableSpec
    model: ModelIdentity
    meta: VersionMeta
    dense: Arrays  # `dense.*` and `state.*`
    state: Path | None = None  # the file with the exact state of the net, if it is not in `dense`
    num_rows: int = 0
    by_range: tuple[int, ...] = ()
    blocks: Iterable[RowLayer] = ()  # of the main table these three, as in a TableImage
    tables: Mapping[str, TableImage] = field(default_factory=dict)  # the others
    sketch: Array | None = None  # admission sketch, uint8 (blocks, 64); None if nothing was ever counted
    id_strings: Arrays | None = None  # columns `feature`, `id`, `offsets`, `bytes`, sorted by (feature, id)
    items: Arrays | None = None  # of a model with two towers, columns as those of id strings
    program: bytes | Path | None = None  # the exported model, or the file that has it
    program_checksum: FileChecksum | None = None  # of such a file, as it was written: damage must not pass for sound
    onnx: bytes | None = None  # the model as ONNX with this version's weights


def write_base(log_path: Path, image: BaseImage) -> Path:
    """1. Write the files in a draft folder. 2. fsync them. 3. Write the manifest with their checksums.
    4. Rename the folder. 5. fsync the log's folder.

    Returns the base's folder, also if another process has written the same base meanwhile.
    """
    path = Path(log_path) / base_name(image.tip.number)
    draft = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        sums = _write_rows(draft, image)
        failpoint("while a base is written")
        state = {name: array for name, array in image.dense.items() if is_exact_state(name)}
        _write_arrays(draft / DENSE, {name: array for name, array in image.dense.items() if name not in state})
        if image.state is not None:
            _write_file(draft / STATE, image.state)
        elif state:
            _write_arrays(draft / STATE, state)
        if image.sketch is not None:
            _write_arrays(draft / SKETCH, {"sketch.bytes": image.sketch})
        if image.id_strings is not None and len(image.id_strings["id"]):
            _write_arrays(draft / ID_STRINGS, image.id_strings)
        if image.items is not None:
            _write_arrays(draft / ITEMS, image.items)
        _write_file(draft / MODEL, image.program)
        if image.program_checksum is not None:
            sums[MODEL] = image.program_checksum
        _write_file(draft / ONNX, image.onnx)
        _write_manifest(draft, image, sums)
        if path.exists() and not is_complete(path):
            path.rename(draft.with_name(f".tmp-deleted-{path.name}-{time.time_ns()}"))
        failpoint("before a base is renamed")
        try:
            draft.rename(path)
        except OSError:
            if not is_complete(path):
                raise
        failpoint("after a base is renamed")
        fsync_folder(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def is_complete(path: Path) -> bool:
    """Return True if a base's manifest can be read and its files have the sizes it names; but see EXPORTS."""
    try:
        manifest = read_base_manifest(path)
        return all(
            (path / name).stat().st_size == expected.bytes
            for name, expected in manifest.files.items()
            if name not in EXPORTS
        )
    except (LogError, OSError):
        return False


def _write_rows(draft: Path, image: BaseImage) -> dict[str, FileChecksum]:
    """Write the row files, and return their checksums."""
    main = TableImage(spec=image.table, num_rows=image.num_rows, by_range=image.by_range, blocks=image.blocks)
    sums: dict[str, FileChecksum] = {}
    for table, rows in zip(tables_from(image.table, specs_of(image)), (main, *image.tables.values()), strict=True):
        if len(rows.by_range) != len(image.by_range):
            raise ValueError(f"the {table.title} table has other ranges than the main table")
        sums |= RowWriter(draft, table, rows).write()
    return sums


def specs_of(image: BaseImage) -> dict[str, TableSpec]:
    """Return the specifications of the tables beside the main one."""
    return {name: table.spec for name, table in image.tables.items()}


def _write_arrays(path: Path, arrays: Arrays) -> None:
    writer = TensorWriter(path, {name: shape_of(array) for name, array in arrays.items()})
    try:
        for name, array in arrays.items():
            writer.write(name, 0, array)
    finally:
        writer.close()


def _write_file(path: Path, program: bytes | Path | None) -> None:
    """Write a file, or link one that never changes."""
    if program is None:
        return
    if isinstance(program, Path):
        try:
            os.link(program, path)  # bases may share the file, for it never changes
            return
        except OSError:
            program = program.read_bytes()
    with path.open("wb") as file:
        file.write(program)
        file.flush()
        os.fsync(file.fileno())


def _write_manifest(draft: Path, image: BaseImage, sums: Mapping[str, FileChecksum]) -> None:
    files = {
        file.name: sums.get(file.name) or FileChecksum(file.stat().st_size, crc32_of_file(file))
        for file in sorted(draft.iterdir())
    }
    manifest = BaseManifest(
        number=image.tip.number,
        checksum=image.tip.checksum,
        epoch=image.tip.number >> EPOCH_SHIFT,
        created_ms=wall_ms(),
        schema=msgspec.to_builtins(image.schema),
        table=msgspec.structs.replace(image.table, sketch_blocks=image.meta.sketch_blocks),
        tables=specs_of(image),
        model=image.model,
        meta=image.meta,
        files=files,
        num_ranges=max(1, len(image.by_range)),
    )
    with (draft / MANIFEST).open("wb") as file:
        file.write(encode_checksummed_json(manifest))
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(draft)
