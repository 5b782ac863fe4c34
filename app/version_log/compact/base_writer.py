"""Write a base: a folder that is complete and durable before readers can see it."""

# R ranges
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.read.exact_state import is_exact_state
from springtide.app.version_log.tables import LogTable, tables_from
from springtide_client.errors import LogError
from springtide_client.format.checksums import crc32_of_file, encode_checksummed_json
from springtide_client.format.records import EPOCH_SHIFT, Head, VersionMeta
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import PLACE_BYTES, Array, Arrays, TensorShape, shape_of
from springtide_client.log.base import (
    DENSE,
    EXPORTS,
    ID_STRINGS,
    ITEMS,
    MANIFEST,
    MODEL,
    ONNX,
    ROW_COLUMNS,
    SKETCH,
    STATE,
    Base,
    BaseManifest,
    FileChecksum,
    ModelIdentity,
    TableSpec,
    optimizer_files,
    read_base_manifest,
    rows_files,
)
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name
from springtide_client.rows.hash_range import HashRange, owners_of
from springtide_client.rows.row_block import RowBlock, column_shapes
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import fsync_folder, sync_file, write_atomically, write_synced

LEAST_DATA_OF_PADDING = 8  # times the most padding of a file: below, its columns have no places
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TableImage:
    """The rows of one table at one version."""

    spec: TableSpec
    num_rows: int = 0
    by_range: tuple[int, ...] = ()  # of these, in each of several ranges, equal parts of all key hashes; (): one
    blocks: Iterable[RowBlock] = ()  # num_rows rows with states, sorted by (key hash, feature)

    @staticmethod
    def of(
        spec: TableSpec, rows: Callable[[], Iterable[RowBlock]], keys: Iterable[RowBlock], num_ranges: int
    ) -> "TableImage":
        """Return the image of rows that are counted first: `keys` are the blocks of `rows()` without their values."""
        counts_R = np.zeros(num_ranges, np.int64)
        for block in keys:
            counts_R += np.bincount(owners_of(block.key_hash, num_ranges), minlength=num_ranges)
        by_range = tuple(counts_R.tolist()) if num_ranges > 1 else ()
        return TableImage(spec=spec, num_rows=int(counts_R.sum()), by_range=by_range, blocks=rows())


class RowWriter:
    """Writes the files of one table. At any time one file, and that of its states, is open."""

    def __init__(self, folder: Path, table: LogTable, image: TableImage) -> None:
        self._folder, self._table, self._image = folder, table, image
        self._num_rows = image.by_range or (image.num_rows,)  # of each file
        if sum(self._num_rows) != image.num_rows:
            raise ValueError(f"{image.num_rows} rows cannot be {image.by_range} by ranges")
        self._num_ranges = len(self._num_rows)
        self._rows_files = rows_files(table.name, self._num_ranges)
        self._optimizer_files = optimizer_files(table.name, self._num_ranges)

    def write(self) -> dict[str, FileChecksum]:
        """Write all files; return their checksums, computed while writing so that they are not read again.

        ValueError if the rows are not as the image says.
        """
        sums: dict[str, FileChecksum] = {}
        blocks = self._blocks_by_range()
        following, first_row = next(blocks, None), 0
        for index, num_rows in enumerate(self._num_rows):
            with ExitStack() as files:
                written = self._open(index, first_row, files)
                start = 0
                while following is not None and following[0] == index:
                    start += self._write_block(written, start, following[1], num_rows)
                    following = next(blocks, None)
            if start != num_rows:
                raise ValueError(f"got {start} rows for a base of {num_rows}")
            sums |= {
                name: FileChecksum(file.num_bytes, file.crc32)
                for name, file in written.items()
                if file.crc32 is not None
            }
            first_row += num_rows
            failpoint("between two row files of a base")
        return sums

    def _open(self, index: int, first_row: int, files: ExitStack) -> dict[str, TensorWriter]:
        """Open the files of one range, whose first row is that many rows behind the first of the table."""
        n, spec = self._num_rows[index], self._image.spec
        contents = {self._rows_files[index]: row_shapes(n, spec.dim)}
        if self._table.has_optimizer_file:
            contents[self._optimizer_files[index]] = {"state": TensorShape(np.dtype("<f4"), (n, spec.state_width))}
        return {
            name: files.enter_context(
                closing(TensorWriter(self._folder / name, shapes, places=self._places(shapes, first_row)))
            )
            for name, shapes in contents.items()
        }

    def _places(self, shapes: dict[str, TensorShape], first_row: int) -> dict[str, int] | None:
        """Return where each column would be if all ranges were one array: so readers map it as one.

        None for a file so small that the padding before its columns would matter: readers copy it.
        """
        num_bytes = sum(shape.num_bytes for shape in shapes.values())
        if self._num_ranges == 1 or num_bytes < LEAST_DATA_OF_PADDING * PLACE_BYTES * len(shapes):
            return None
        return {
            name: first_row * TensorShape(shape.dtype, (1, *shape.shape[1:])).num_bytes
            for name, shape in shapes.items()
        }

    def _write_block(self, written: dict[str, TensorWriter], start: int, block: RowBlock, num_rows: int) -> int:
        if start + len(block) > num_rows:
            raise ValueError(f"got more than {num_rows} rows for a base of {num_rows}")
        rows, *states = written.values()
        rows.write_block(start, {"mixed": block.key_hash, **{name: getattr(block, name) for name in ROW_COLUMNS}})
        if states:
            states[0].write("state", start, block.state)
        return len(block)

    def _blocks_by_range(self) -> Iterator[tuple[int, RowBlock]]:
        """Yield the blocks, cut where one range ends, each with the range that it is in, counted from 0."""
        highest = 0
        for block in self._image.blocks:
            if not len(block):
                continue
            self._check(block, highest)
            highest = int(block.key_hash[-1])
            first, last = owners_of(block.key_hash[[0, -1]], self._num_ranges).tolist()
            for index in range(first, last + 1):
                part = HashRange(index + 1, self._num_ranges).select(block)
                if len(part):
                    yield index, part

    def _check(self, block: RowBlock, highest: int) -> None:
        if block.state.shape[1] != self._image.spec.state_width or block.tombstones().any():
            raise ValueError("a base holds only live rows, with their optimizer states")
        if int(block.key_hash[0]) < highest or not bool((block.key_hash[1:] >= block.key_hash[:-1]).all()):
            raise ValueError("the rows of a base must be sorted by key hash")
        if not self._table.holds(block.feature).all():
            raise ValueError(f"the {self._table.title} table does not hold the rows of all these features")


def row_shapes(n: int, dim: int) -> dict[str, TensorShape]:
    """Return the columns of a file with n rows."""
    shapes = {"mixed": TensorShape(np.dtype(np.uint64), (n,)), **column_shapes(n, dim)}
    return {name: shapes[name] for name in ("mixed", *ROW_COLUMNS)}


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """The contents of a base: everything at one version."""

    head: Head  # the version it holds
    schema: Schema
    table: TableImage  # the main one
    tables: Mapping[str, TableImage] = field(default_factory=dict)  # the others
    model: ModelIdentity
    meta: VersionMeta
    dense: Arrays  # `dense.*` and `state.*`
    state: Path | None = None  # the file with the exact state of the net, if it is not in `dense`
    sketch: Array | None = None  # admission sketch, uint8 (blocks, 64); None if nothing was ever counted
    id_strings: Arrays | None = None  # columns `feature`, `id`, `offsets`, `bytes`, sorted by (feature, id)
    items: Arrays | None = None  # of a model with two towers, columns as those of id strings
    program: bytes | Path | None = None  # the exported model, or the file that has it
    program_checksum: FileChecksum | None = None  # of such a file, as it was written: damage must not pass for sound
    onnx: bytes | None = None  # the model as ONNX with this version's weights

    @property
    def specs(self) -> dict[str, TableSpec]:
        """The specifications of the tables beside the main one."""
        return {name: table.spec for name, table in self.tables.items()}


def write_base(log_path: Path, image: BaseImage) -> Path:
    """1. Write the files in a draft folder. 2. fsync them. 3. Write the manifest with their checksums.
    4. Rename the folder. 5. fsync the log's folder.

    Returns the base's folder, also if another process has written the same base meanwhile.
    """
    with draft_base(log_path, image.head) as draft:
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
    return Path(log_path) / base_name(image.head.number)


@contextmanager
def draft_base(log_path: Path, head: Head) -> Iterator[Path]:
    """Yield the draft folder of a base. It becomes the base at the end, or is deleted after an error."""
    path = Path(log_path) / base_name(head.number)
    draft = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        fsync_folder(draft)
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
    sums: dict[str, FileChecksum] = {}
    tables = tables_from(image.table.spec, image.specs)
    for table, rows in zip(tables, (image.table, *image.tables.values()), strict=True):
        if len(rows.by_range) != len(image.table.by_range):
            raise ValueError(f"the {table.title} table has other ranges than the main table")
        sums |= RowWriter(draft, table, rows).write()
    return sums


def _write_arrays(path: Path, arrays: Arrays) -> None:
    writer = TensorWriter(path, {name: shape_of(array) for name, array in arrays.items()})
    try:
        for name, array in arrays.items():
            writer.write(name, 0, array)
    finally:
        writer.close()


def _write_file(path: Path, content: bytes | Path | None) -> None:
    """Write a file, or link one that never changes."""
    if isinstance(content, Path):
        link_file(content, path)
    elif content is not None:
        write_synced(path, content)


def link_file(source: Path, target: Path) -> None:
    """Let bases share a file that never changes; where the file system has no links, it is copied."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)


def _write_manifest(draft: Path, image: BaseImage, sums: Mapping[str, FileChecksum]) -> None:
    files = {
        file.name: sums.get(file.name) or FileChecksum(file.stat().st_size, crc32_of_file(file))
        for file in sorted(draft.iterdir())
    }
    manifest = BaseManifest(
        number=image.head.number,
        checksum=image.head.checksum,
        epoch=image.head.number >> EPOCH_SHIFT,
        created_ms=wall_ms(),
        schema=msgspec.to_builtins(image.schema),
        table=replace(image.table.spec, sketch_blocks=image.meta.sketch_blocks),
        tables=image.specs,
        model=image.model,
        meta=image.meta,
        files=files,
        num_ranges=max(1, len(image.table.by_range)),
    )
    write_synced(draft / MANIFEST, encode_checksummed_json(manifest))


def write_exported_model(newest: Base, directory: LogDirectory, program: bytes) -> None:
    """Write `program` into each base whose exported model is that of `newest`, and damaged. Bases link one file.

    The oldest first: after a crash on the way the newest is still found damaged.
    """
    known = newest.manifest.files.get(MODEL)
    checksum = FileChecksum(len(program), zlib.crc32(program))
    for path in directory.bases():
        with suppress(LogError, FileNotFoundError):  # a base that cannot be opened, or is deleted meanwhile
            base = Base.open(path)
            if base.manifest.files.get(MODEL) != known or base.is_sound(MODEL):
                continue
            manifest = replace(base.manifest, files={**base.manifest.files, MODEL: checksum})
            write_atomically(path / MODEL, program)
            write_atomically(path / MANIFEST, encode_checksummed_json(manifest))
            logger.warning("replaced the damaged exported model of a base", extra={"base": path.name})
