"""A base: all rows and parameters at one version, as a folder of files that are mapped, not loaded."""

# K keys of a lookup, D dimension, S width of the optimizer state
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import decode_checksummed_json
from springtide_client.format.checksums import crc32_of_file
from springtide_client.format.records import Tip, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays, advise_random_access, map_tensors
from springtide_client.rows.row_layer import RowLayer
from springtide_client.schema import Schema

MANIFEST, ROWS, OPTIMIZER = "manifest.json", "rows.safetensors", "optimizer.safetensors"
DENSE, ID_STRINGS, MODEL = "dense.safetensors", "texts.safetensors", "model.pt2"
SKETCH, ONNX = "sketch.safetensors", "model.onnx"
STATE = "state.safetensors"  # of the dense net: exact parameters, optimizer state, random state
# the files that serving needs; the others are for trainers, for id strings, and for inference without Python
SERVING_FILES = frozenset({ROWS, DENSE, SKETCH, MODEL})


class TableSpec(msgspec.Struct, kw_only=True):
    """What a follower must know about the table to read rows and to compute initial values."""

    dim: int
    state_width: int
    seed: int
    init_scale: float
    optimizer: dict[str, Any] = {}
    dtype: str = "float32"  # of the rows in the table; files always hold float32
    sketch_blocks: int = 0  # the size of the sketch in sketch.safetensors, which is absent while nothing was counted


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
    repeats: int = 0  # the oldest base that holds the same, if only heartbeats were written since; else 0

    @property
    def tip(self) -> Tip:
        return Tip(self.number, self.checksum)

    def decode_schema(self) -> Schema:
        """Return the schema that the base was written with."""
        return Schema.from_json(msgspec.json.encode(self.schema))


class FoundBaseRows(NamedTuple):
    """Rows of some keys, with the columns that only trainers need. Where `found` is False, the rest is zero."""

    found: BoolArray
    values: Float32Array
    states: Float32Array
    counts: Int64Array
    last_seen: Int64Array


class Base:
    """An open base. Its mapped files stay readable after retention has deleted the folder."""

    def __init__(self, path: Path, manifest: BaseManifest) -> None:
        self.path = path
        self.manifest = manifest
        arrays = map_tensors(path / ROWS)
        try:
            fields = [arrays[name] for name in ("mixed", "feature", "id", "value", "count", "last_seen")]
        except KeyError as missing:
            raise LogError(f"{path} lacks the tensor {missing}") from None
        self.rows = RowLayer(*fields)
        self._arrays = map_tensors(path / DENSE)

    @staticmethod
    def open(path: Path, only: Collection[str] | None = None) -> "Base":
        """Map the files after checking their sizes; LogError when one is missing or truncated.

        With `only`, other files are ignored, and may be missing.
        """
        path = Path(path)
        try:
            manifest = read_base_manifest(path)
            for name, expected in manifest.files.items():
                if (only is None or name in only) and (path / name).stat().st_size != expected.bytes:
                    raise LogError(f"{path / name} does not have the {expected.bytes} bytes that its manifest names")
            base = Base(path, manifest)
            if only is None or OPTIMIZER in only:
                _ = base.states
            return base
        except OSError as error:
            raise LogError(f"the base {path} cannot be opened: {error}") from None

    @cached_property
    def states(self) -> Float32Array:
        """The optimizer states of the rows [n, S]. Mapped on first use: serving does not need the file."""
        try:
            return map_tensors(self.path / OPTIMIZER)["state"]
        except KeyError as missing:
            raise LogError(f"{self.path} lacks the tensor {missing}") from None

    def advise_random_access(self, *, with_states: bool = True) -> None:
        """Turn off the kernel's readahead: lookups read single rows, and in little memory readahead would thrash."""
        advise_random_access(self.rows.value)
        if with_states:
            advise_random_access(self.states)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tip(self) -> Tip:
        return self.manifest.tip

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
    def sketch(self) -> UInt8Array | None:
        """The blocks of the admission sketch, uint8 (B, 64); None if nothing was counted."""
        return map_tensors(self.path / SKETCH)["sketch.bytes"] if SKETCH in self.manifest.files else None

    @property
    def model_path(self) -> Path | None:
        """The path of the exported program; None in a base without one."""
        return self.path / MODEL if MODEL in self.manifest.files else None

    @cached_property
    def layer(self) -> RowLayer:
        """The rows with their optimizer states."""
        rows = self.rows
        fields = (rows.mixed, rows.feature, rows.id, rows.value, rows.count, rows.last_seen)
        return RowLayer(*fields, None, self.states)

    def find_rows(self, features_K: UInt16Array, ids_K: Int64Array) -> FoundBaseRows:
        """Find the rows of some keys, with their optimizer states. Expiry is not applied."""
        rows_K = self.rows.find(features_K, ids_K)
        found_K = rows_K >= 0
        hits = rows_K[found_K]

        def gather(column: Array) -> Array:
            out = np.zeros((len(rows_K), *column.shape[1:]), column.dtype)
            out[found_K] = column[hits]
            return out

        rows = self.rows
        return FoundBaseRows(
            found_K, gather(rows.value), gather(self.states), gather(rows.count), gather(rows.last_seen)
        )

    def verify(self) -> None:
        """Read every file; LogError at the first that does not match its checksum."""
        for name, expected in self.manifest.files.items():
            if crc32_of_file(self.path / name) != expected.crc32:
                raise LogError(f"{self.path / name} is corrupt: it does not match its checksum")
        mixed = self.rows.mixed
        if len(mixed) and not bool((mixed[1:] >= mixed[:-1]).all()):
            raise LogError(f"{self.path} is not sorted by mixed key")

    def __repr__(self) -> str:
        return f"Base({version_name(self.manifest.number)}, {len(self)} rows)"


def read_base_manifest(path: Path) -> BaseManifest:
    """Read the manifest of a base; LogError when it is corrupt, FileNotFoundError once the base is deleted."""
    return decode_checksummed_json((path / MANIFEST).read_bytes(), BaseManifest, str(path / MANIFEST))
