"""A base: the full image at one version, as a directory that is mapped, not loaded."""

# K keys asked for, D dimension, S width of the optimizer state
import zlib
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import decode_checksummed_json
from springtide_client.format.records import Tip, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays, advise_random_access, map_tensors
from springtide_client.rows.layers import BoolArray, Float32Array, Int64Array, RowLayer, UInt16Array
from springtide_client.schema import Schema

UInt8Array = npt.NDArray[np.uint8]

MANIFEST, ROWS, OPTIMIZER = "manifest.json", "rows.safetensors", "optimizer.safetensors"
DENSE, ID_STRINGS, MODEL = "dense.safetensors", "texts.safetensors", "model.pt2"
SKETCH, ONNX = "sketch.safetensors", "model.onnx"
# what answers are made of; the rest is for trainers, for people, and for inference without Python
SERVING_FILES = frozenset({ROWS, DENSE, SKETCH, MODEL})


class TableSpec(msgspec.Struct, kw_only=True):
    """What a follower must know of the table to read rows and to make first values."""

    dim: int
    state_width: int
    seed: int
    init_scale: float
    optimizer: dict[str, Any] = {}
    dtype: str = "float32"  # of the rows' values: bfloat16 ones are written as the float32 that equals them
    sketch_blocks: int = 0  # of sketch.safetensors, which is absent where nothing was ever counted


class ModelIdentity(msgspec.Struct, kw_only=True):
    """Which dense model it is."""

    name: str
    options: dict[str, Any] = {}


class FileChecksum(msgspec.Struct):
    """What a file must measure."""

    bytes: int
    crc32: int


class BaseManifest(msgspec.Struct, kw_only=True):
    """A base's manifest.json."""

    number: int
    checksum: int  # of the record that the base equals; of a log's first base, its number
    epoch: int
    created_ms: int
    schema: dict[str, Any]
    table: TableSpec
    model: ModelIdentity
    meta: VersionMeta
    files: dict[str, FileChecksum]

    @property
    def tip(self) -> Tip:
        return Tip(self.number, self.checksum)

    def decode_schema(self) -> Schema:
        """The schema it was written with."""
        return Schema.from_json(msgspec.json.encode(self.schema))


class FoundBaseRows(NamedTuple):
    """Rows of some keys with what only a trainer needs; where `found` is False the rest is zero."""

    found: BoolArray
    values: Float32Array
    states: Float32Array
    counts: Int64Array
    last_seen: Int64Array


class Base:
    """An opened base. Its maps outlive the directory: a retired base that is still in use stays readable."""

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
        """Maps the files after a look at their sizes; LogError where one is missing or cut.

        Without those that are not among `only`: they are neither looked at nor mapped, and may be missing.
        """
        path = Path(path)
        try:
            manifest = read_base_manifest(path)
            for name, expected in manifest.files.items():
                if (only is None or name in only) and (path / name).stat().st_size != expected.bytes:
                    raise LogError(f"{path / name} has not the {expected.bytes} bytes of its manifest")
            base = Base(path, manifest)
            if only is None or OPTIMIZER in only:
                _ = base.states
            return base
        except OSError as error:
            raise LogError(f"the base {path} cannot be opened: {error}") from None

    @cached_property
    def states(self) -> Float32Array:
        """The rows' optimizer states [n, S]; who only serves has no need of the file."""
        try:
            return map_tensors(self.path / OPTIMIZER)["state"]
        except KeyError as missing:
            raise LogError(f"{self.path} lacks the tensor {missing}") from None

    def advise_random_access(self, *, with_states: bool = True) -> None:
        """Single rows will be read, not all in order: at a memory limit the kernel's read-ahead would only thrash."""
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
        """The dense model's parameters and buffers, `dense.*`, by their full names."""
        return {name: array for name, array in self._arrays.items() if name.startswith("dense.")}

    @property
    def trainer_state(self) -> Arrays:
        """What only the trainer reads back, `state.*`, by full names."""
        return {name: array for name, array in self._arrays.items() if name.startswith("state.")}

    @cached_property
    def id_strings(self) -> Arrays | None:
        """`feature`, `id`, `offsets`, `bytes`, sorted by (feature, id); None where the base has none."""
        return map_tensors(self.path / ID_STRINGS) if ID_STRINGS in self.manifest.files else None

    @cached_property
    def sketch(self) -> UInt8Array | None:
        """The counts of ids without a row, uint8 (B, 64); None where the base has none."""
        return map_tensors(self.path / SKETCH)["sketch.bytes"] if SKETCH in self.manifest.files else None

    @property
    def model_path(self) -> Path | None:
        """The exported program; None in a base without one."""
        return self.path / MODEL if MODEL in self.manifest.files else None

    @cached_property
    def layer(self) -> RowLayer:
        """The rows with their optimizer states."""
        rows = self.rows
        fields = (rows.mixed, rows.feature, rows.id, rows.value, rows.count, rows.last_seen)
        return RowLayer(*fields, None, self.states)

    def find_rows(self, features_K: UInt16Array, ids_K: Int64Array) -> FoundBaseRows:
        """The rows of some keys with their optimizer states. Whether a rule forgot one since, the caller looks."""
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
        """Reads everything; LogError at the first file that does not match its checksum."""
        for name, expected in self.manifest.files.items():
            if crc32_of_file(self.path / name) != expected.crc32:
                raise LogError(f"{self.path / name} is damaged: it does not match its checksum")
        mixed = self.rows.mixed
        if len(mixed) and not bool((mixed[1:] >= mixed[:-1]).all()):
            raise LogError(f"{self.path} is not sorted by mixed key")

    def __repr__(self) -> str:
        return f"Base({version_name(self.manifest.number)}, {len(self)} rows)"


def read_base_manifest(path: Path) -> BaseManifest:
    """The manifest of a base's directory; LogError, or FileNotFoundError once the base is retired."""
    return decode_checksummed_json((path / MANIFEST).read_bytes(), BaseManifest, str(path / MANIFEST))


def crc32_of_file(path: Path) -> int:
    """The crc32 of a file, read in pieces."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            crc = zlib.crc32(piece, crc)
    return crc
