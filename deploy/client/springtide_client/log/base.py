"""A base: all rows and parameters at one version, as a folder of files that are mapped, not loaded."""

# n rows, S width of the optimizer state
# K keys of a lookup, n rows, S width of the optimizer state
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from springtide_client.array_types import Float32Array, UInt8Array
from springtide_client.errors import LogError
from springtide_client.format.checksums import crc32_of_file, decode_checksummed_json
from springtide_client.format.joined_tensors import FileRows, map_joined
from springtide_client.format.records import Head, VersionMeta, version_name
from springtide_client.format.tensors import Arrays, advise_random_access, map_tensors
from springtide_client.rows.hash_range import ALL_KEYS, MAX_RANGES, HashRange
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.table_names import MAIN_TABLE, TableNames
from springtide_client.schema import Schema

ROWS, OPTIMIZER = "rows.safetensors", "optimizer.safetensors"
MANIFEST, DENSE, ID_STRINGS, MODEL = "manifest.json", "dense.safetensors", "texts.safetensors", "model.pt2"
SKETCH, ONNX, ITEMS = "sketch.safetensors", "model.onnx", "items.safetensors"
STATE = "state.safetensors"  # of the dense net: exact parameters, optimizer state, random state
EXPORTS = frozenset({MODEL, ONNX})  # forms of the net, which hold no row: those who need one check it
ADVICE = "`springtide versions verify` says what to do"
ROW_COLUMNS = ("feature", "id", "value", "count", "last_seen")  # of a file of rows, behind the key hashes as "mixed"
TABLE_NAME = re.compile(r"[a-z0-9_-]{1,64}")


def rows_files(table: str, num_ranges: int = 1) -> list[str]:
    """Return the names of the files with the rows of a table, in the order of their ranges."""
    return _names(f"rows.{table}" if table else "rows", num_ranges)


def optimizer_files(table: str, num_ranges: int = 1) -> list[str]:
    """Return those of the files with their states; absent where a table other than the main one has none."""
    return _names(f"optimizer.{table}" if table else "optimizer", num_ranges)


def _names(stem: str, num_ranges: int) -> list[str]:
    if num_ranges == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05d}-of-{num_ranges:05d}.safetensors" for number in range(1, num_ranges + 1)]


def overlapping(num_ranges: int, hash_range: HashRange) -> range:
    """Return which of the ranges, counted from 0, have keys of another range."""
    if hash_range.is_empty:
        return range(0)
    last = max(hash_range.start, hash_range.end - 1)
    first_owner, last_owner = (((key_hash >> 32) * num_ranges) >> 32 for key_hash in (hash_range.start, last))
    return range(first_owner, last_owner + 1)


class BaseTable:
    """One table of an open base, or its rows of one range of keys."""

    def __init__(
        self,
        rows_paths: Sequence[Path],
        optimizer_paths: Sequence[Path],
        *,
        dim: int,
        state_width: int,
        hash_range: HashRange = ALL_KEYS,
    ) -> None:
        """`rows_paths`: the files that have keys of the range, in order; `optimizer_paths`: those with their states.

        LogError when the rows cannot be read, OSError when a file is missing.
        """
        self._optimizer_paths, self._state_width = optimizer_paths, state_width
        self._slices: list[slice | None] = [None] * len(rows_paths)  # which rows of each file these are; None: all
        if not rows_paths:
            self.rows, self.states = RowBlock.zeros(0, dim), np.zeros((0, state_width), np.float32)
            return
        try:
            if not hash_range.is_all:
                self._slices = [hash_range.slice_of(map_tensors(path)["mixed"]) for path in rows_paths]
            arrays = map_joined([FileRows(*file) for file in zip(rows_paths, self._slices, strict=True)])
            columns, key_hash = {name: arrays[name] for name in ROW_COLUMNS}, arrays["mixed"]
        except KeyError as missing:
            raise LogError(f"{rows_paths[0]} lacks the tensor {missing}") from None
        no_states = np.empty((len(key_hash), 0), np.float32)
        self.rows = RowBlock(**columns, state=no_states, known_hash=key_hash)

    @cached_property
    def states(self) -> Float32Array:
        """The optimizer states of the rows [n, S]. Mapped on first use: not all servers need the file."""
        if not self._state_width:
            return np.zeros((len(self.rows), 0), np.float32)
        try:
            return map_joined([FileRows(*file) for file in zip(self._optimizer_paths, self._slices, strict=True)])[
                "state"
            ]
        except KeyError as missing:
            raise LogError(f"{self._optimizer_paths[0]} lacks the tensor {missing}") from None

    @cached_property
    def layer(self) -> RowBlock:
        """The rows with their optimizer states."""
        return replace(self.rows, state=self.states)

    def advise_random_access(self, *, with_states: bool) -> None:
        """Turn off the kernel's readahead: lookups read single rows, and in little memory readahead would thrash."""
        columns = (self.layer if with_states else self.rows).columns().values()
        for array in {id(array.base): array for array in columns}.values():  # one map may have them all
            advise_random_access(array)


class TableSpec(msgspec.Struct, kw_only=True):
    """A table as a follower must know it, to read rows and to compute initial values."""

    dim: int
    state_width: int  # float32 numbers of a row beside its `dim` values: the optimizer's, then the wide part's
    seed: int
    init_scale: float
    optimizer: dict[str, Any] = {}
    dtype: str = "float32"  # of the rows in the table; files always hold float32
    sketch_blocks: int = 0  # the size of the sketch in sketch.safetensors, which is absent while nothing was counted
    wide_width: int = 0  # of `state_width`, the last: the wide part's, which predictions need too
    features: list[int] = []  # the numbers of the features that live here; the main table has all others


class ModelIdentity(msgspec.Struct, kw_only=True):
    """The name and the options of the dense model, and the name of its optimizer."""

    name: str
    options: dict[str, Any] = {}
    optimizer: str = ""


class FileChecksum(msgspec.Struct):
    """The size and the checksum of a file."""

    bytes: int
    crc32: int


class BaseManifest(msgspec.Struct, kw_only=True):
    """A base's manifest.json."""

    number: int
    checksum: int  # of the record that the base equals; in one that equals no record, its number
    epoch: int
    created_ms: int
    schema: dict[str, Any]
    table: TableSpec
    model: ModelIdentity
    meta: VersionMeta
    files: dict[str, FileChecksum]
    tables: dict[str, TableSpec] = {}  # beside the main one, by name
    # of key hashes, equal parts: each table has its rows in a file for each
    num_ranges: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANGES)] = 1
    repeats: int = 0  # the oldest base that holds the same, if only heartbeats were written since; else 0

    @property
    def head(self) -> Head:
        return Head(self.number, self.checksum)

    @property
    def num_bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files.values())

    def decode_schema(self) -> Schema:
        """Return the schema that the base was written with."""
        return Schema.from_json(msgspec.json.encode(self.schema))

    @property
    def all_tables(self) -> dict[str, TableSpec]:
        """The tables by name, the main one ("") first."""
        return {MAIN_TABLE: self.table, **self.tables}

    @property
    def table_names(self) -> TableNames:
        """Which table holds the rows of a feature."""
        return TableNames({name: table.features for name, table in self.tables.items()})

    @property
    def serving_files(self) -> frozenset[str]:
        """The files that serving needs. The others are for trainers, id strings, and inference without Python."""
        return self.serving_files_of(ALL_KEYS)

    def serving_files_of(self, hash_range: HashRange) -> frozenset[str]:
        """Return the files that serving a range needs: of those with rows, the ones that have keys of it."""
        files = {DENSE, SKETCH, MODEL}
        for name, table in self.all_tables.items():
            files.update(self.rows_files(name, hash_range))
            if table.wide_width:
                files.update(self.optimizer_files(name, hash_range))
        return frozenset(files)

    def rows_files(self, table: str, hash_range: HashRange = ALL_KEYS) -> list[str]:
        """Return the files that have the rows of a table, or those of a range of keys, in the order of the keys."""
        names = rows_files(table, self.num_ranges)
        return [names[index] for index in overlapping(self.num_ranges, hash_range)]

    def optimizer_files(self, table: str, hash_range: HashRange = ALL_KEYS) -> list[str]:
        """Return the same of the files with their states, which a table without states need not have."""
        names = optimizer_files(table, self.num_ranges)
        return [names[index] for index in overlapping(self.num_ranges, hash_range)]

    def table_files(self, table: str) -> list[str]:
        """Return the files of a table: with rows, and with states if it has any."""
        return [file for file in (*self.rows_files(table), *self.optimizer_files(table)) if file in self.files]

    def table_bytes(self, table: str) -> int:
        """Return the bytes of a table's files."""
        return sum(self.files[file].bytes for file in self.table_files(table))


class Base:
    """An open base. Its mapped files stay readable after retention has deleted the folder."""

    def __init__(self, path: Path, manifest: BaseManifest, hash_range: HashRange = ALL_KEYS) -> None:
        self.path = path
        self.manifest = manifest
        self.hash_range = hash_range  # whose rows it holds
        for name in manifest.tables:
            if not TABLE_NAME.fullmatch(name):  # it becomes part of a path
                raise LogError(f"the base {path} names a table {name!r}: refused")
        self.tables = {
            name: BaseTable(
                [path / file for file in manifest.rows_files(name, hash_range)],
                [path / file for file in manifest.optimizer_files(name, hash_range)],
                dim=spec.dim,
                state_width=spec.state_width,
                hash_range=hash_range,
            )
            for name, spec in manifest.all_tables.items()
        }
        self._arrays = map_tensors(path / DENSE)

    @staticmethod
    def open(path: Path, *, for_serving: bool = False, hash_range: HashRange = ALL_KEYS) -> "Base":
        """Map the files after checking their sizes; LogError when one is missing or truncated.

        Those of EXPORTS matter only to serving; `for_serving` ignores the files that only trainers need. Those may be
        missing. Of rows, those of `hash_range` are mapped and no others.
        """
        path = Path(path)
        try:
            manifest = read_base_manifest(path)
            needed = manifest.serving_files_of(hash_range) if for_serving else manifest.files.keys() - EXPORTS
            for name, expected in manifest.files.items():
                if name in needed and (path / name).stat().st_size != expected.bytes:
                    raise LogError(
                        f"{path / name} does not have the {expected.bytes} bytes that its manifest names: {ADVICE}"
                    )
            base = Base(path, manifest, hash_range)
            for name, table in base.tables.items():
                if not for_serving or needed.issuperset(manifest.optimizer_files(name, hash_range)):
                    _ = table.states
            return base
        except OSError as error:
            raise LogError(f"the base {path} cannot be opened: {error}: {ADVICE}") from None

    @property
    def main(self) -> BaseTable:
        """The main table."""
        return self.tables[MAIN_TABLE]

    def advise_random_access(self, *, with_states: bool = True) -> None:
        """Turn off the kernel's readahead: lookups read single rows, and in little memory readahead would thrash."""
        for name, table in self.tables.items():
            table.advise_random_access(with_states=with_states or self.manifest.all_tables[name].wide_width > 0)

    def __len__(self) -> int:
        return sum(len(table.rows) for table in self.tables.values())

    @property
    def head(self) -> Head:
        return self.manifest.head

    @property
    def dense(self) -> Arrays:
        """The parameters and buffers of the dense model, by their full names `dense.*`."""
        return {name: array for name, array in self._arrays.items() if name.startswith("dense.")}

    @property
    def trainer_state(self) -> Arrays:
        """The trainer's own state, by full names `state.*`."""
        state = map_tensors(self.path / STATE) if STATE in self.manifest.files else {}
        return state | {name: array for name, array in self._arrays.items() if name.startswith("state.")}

    @cached_property
    def id_strings(self) -> Arrays | None:
        """The strings of hashed ids: `feature`, `id`, `offsets`, `bytes`, sorted by (feature, id); None without any."""
        return map_tensors(self.path / ID_STRINGS) if ID_STRINGS in self.manifest.files else None

    @cached_property
    def items(self) -> Arrays | None:
        """The items of a model with two towers: columns as those of `id_strings`; None without any."""
        return map_tensors(self.path / ITEMS) if ITEMS in self.manifest.files else None

    @cached_property
    def sketch(self) -> UInt8Array | None:
        """The blocks of the admission sketch, uint8 (B, 64); None if nothing was counted."""
        return map_tensors(self.path / SKETCH)["sketch.bytes"] if SKETCH in self.manifest.files else None

    def is_sound(self, name: str) -> bool:
        """Return True if a file is there and matches its checksum."""
        expected = self.manifest.files.get(name)
        try:
            return expected is not None and crc32_of_file(self.path / name) == expected.crc32
        except FileNotFoundError:
            return False

    @property
    def model_path(self) -> Path | None:
        """The path of the exported program; None in a base without one."""
        return self.path / MODEL if MODEL in self.manifest.files else None

    def verify(self, *, exports: bool = True) -> None:
        """Read every file; LogError at the first that does not match its checksum. Without `exports` not EXPORTS."""
        for name, expected in self.manifest.files.items():
            if (exports or name not in EXPORTS) and crc32_of_file(self.path / name) != expected.crc32:
                raise LogError(f"{self.path / name} is corrupt: it does not match its checksum: {ADVICE}")
        for name, table in self.tables.items():
            key_hash = table.rows.key_hash
            if not bool((key_hash[1:] >= key_hash[:-1]).all()):
                raise LogError(f"{self.path / rows_files(name)[0]} is not sorted by key hash")

    def __repr__(self) -> str:
        return f"Base({version_name(self.manifest.number)}, {len(self)} rows)"


def read_base_manifest(path: Path) -> BaseManifest:
    """Read the manifest of a base; LogError when it is corrupt, FileNotFoundError once the base is deleted."""
    return decode_checksummed_json((path / MANIFEST).read_bytes(), BaseManifest, str(path / MANIFEST))
