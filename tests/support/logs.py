"""A log written by hand, byte by byte as its format says, beside a dictionary of what it must mean.

Uses none of the trainer's writing code, so that it can test what reads logs. Logs by the real writer: `writer_log.py`.
"""

import json
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_keys, hash_string
from springtide_client.rows.hash_range import owners_of
from springtide_client.schema import Schema
from tests.support.records import encode_record

Key = tuple[int, int]  # feature number, id
Row = tuple[np.ndarray, int, int]  # value, count, last seen
Tensors = dict[str, np.ndarray]

DTYPES = {
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
    "int64": "I64",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "uint8": "U8",
}


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write the arrays as a safetensors file."""
    header, blobs, offset = {}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class HandWrittenLog:
    """One log, one trainer epoch at a time.

    `wall_clock`: versions carry the present time; else each is 100 ms later than the one before, from a fixed start.
    `start`: begin the first epoch at once; else the folder does not exist before `start_epoch`.
    `tables`: beside the main one, by name: width and features. They hold no states.
    `wide_width`: how many numbers `wide` has of each row of the main table, behind one of the optimizer.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        archive: bytes,
        *,
        dim: int = 4,
        seed: int = 7,
        wall_clock: bool = False,
        start: bool = True,
        tables: Mapping[str, tuple[int, list[int]]] | None = None,
        wide_width: int = 0,
    ) -> None:
        self.tables, self.wide_width = dict(tables or {}), wide_width
        self.wide: dict[Key, np.ndarray] = {}
        self.path, self.schema, self.archive = path, schema, archive
        self.dim, self.seed, self.init_scale = dim, seed, 0.05
        self.rows: dict[Key, Row] = {}
        self.tombstones: set[Key] = set()
        self.id_strings: dict[Key, bytes] = {}
        self.dense: Tensors = {}
        self.sketch: np.ndarray | None = None
        self.admission: dict[str, int] = {}
        self.dtype = "float32"
        self.number, self.checksum = 0, 0
        self.wall_clock, self.now_ms = wall_clock, 1_700_000_000_000
        self.sealed: list[dict[str, Any]] = []
        self.epoch = self.count = 0
        if start:
            self.start_epoch()

    def start_epoch(self) -> None:
        """Claim the next epoch, seal the predecessor, begin a segment; the first epoch writes the empty base."""
        self.path.mkdir(parents=True, exist_ok=True)
        predecessor = self.segment if self.epoch else None
        self.epoch += 1
        (self.path / f"epoch-{self.epoch:010d}.claim").touch()
        if predecessor is not None and predecessor.exists():
            self.sealed.append({"file": predecessor.name, "bytes": predecessor.stat().st_size})
        if self.epoch == 1:
            self.number = self.checksum = 1 << 32
            self.write_base()
        self.count = 0
        self.write_manifest()

    @property
    def segment(self) -> Path:
        return self.path / f"seg-{self.epoch:010d}-{0:06d}.log"

    def write_manifest(self) -> None:
        """Publish the manifest of the present epoch."""
        document = {
            "epoch": self.epoch,
            "sealed": self.sealed,
            "base": self.newest_base,
            "tip": {"number": self.number, "checksum": self.checksum},
            "schema": json.loads(self.schema.to_json()),
            "fingerprint": self.schema.fingerprint(),
            "begins": [1 << 32],
        }
        draft = self.path / ".tmp-manifest"
        draft.write_bytes(encode_checksummed_json(document))
        draft.rename(self.path / f"manifest-{self.epoch:010d}.json")

    def write_status(self, **changes: object) -> None:
        """Publish the trainer's status file."""
        document = {"trainer": "running", "reason": "", "updated_ms": wall_ms(), "clean_shutdown": False} | changes
        draft = self.path / ".tmp-status"
        draft.write_text(json.dumps(document))
        draft.rename(self.path / f"status-{max(1, self.epoch):010d}.json")

    def meta(self, **changes: object) -> VersionMeta:
        """Return the meta of a version of the present time, with some fields changed."""
        if self.wall_clock:
            self.now_ms = wall_ms()
        fields: dict[str, Any] = {
            "created_ms": self.now_ms,
            "complete_until_ms": self.now_ms,
            "fingerprint": self.schema.fingerprint(),
        }
        return VersionMeta(**fields | changes)

    def publish(self, vectors: Mapping[Key, Any] | None = None, **version: Any) -> int:
        """Append a version with these vectors, each seen once and now; the rest as in `append`."""
        now_ms = wall_ms() if self.wall_clock else self.now_ms
        rows = {key: (np.array(vector, np.float32), 1, now_ms) for key, vector in (vectors or {}).items()}
        return self.append(rows, **version)

    def row(self, seed: int) -> Row:
        """Return a row of the main table that is this number throughout, and was seen as often."""
        return np.full(self.dim, seed, np.float32), seed, 1000 + seed

    def append(
        self,
        rows: dict[Key, Row] | None = None,
        forgotten: Iterable[Key] = (),
        dense: Tensors | None = None,
        seen: dict[Key, int] | None = None,
        strings: Iterable[tuple[int, str]] = (),
        **meta: object,
    ) -> int:
        """Append a version and return its number; forgetting applies before rows.

        `seen`: counts for the admission sketch; `strings`: (feature, string) of ids that are hashed strings.
        """
        rows, forgotten, dense = rows or {}, list(forgotten), dense or {}
        new_strings = {(feature, hash_string(text.encode())): text.encode() for feature, text in strings}
        tensors: Tensors = {}
        for table, (dim, _) in self.all_tables.items():
            held = {key: row for key, row in rows.items() if self.table_of(key) == table}
            if held:
                columns = row_columns(held, dim)
                if not table:
                    columns["state"] = self.states_of(held)
                tensors |= {f"{table}/rows.{name}".lstrip("/"): column for name, column in columns.items()}
        if forgotten:
            tensors |= {
                "forgotten.feature": np.array([feature for feature, _ in forgotten], np.uint16),
                "forgotten.id": np.array([row_id for _, row_id in forgotten], np.int64),
            }
        if new_strings:
            tensors |= string_tensors(new_strings, "texts.")
        tensors |= {f"dense.{name}": array for name, array in dense.items()}
        if seen:
            tensors |= self.add_to_sketch(seen)
        if self.sketch is not None:
            meta = {"sketch_blocks": len(self.sketch), "admission": self.admission} | meta
        tensors["state.optimizer.step"] = np.zeros(1, np.float32)
        self.count += 1
        self.now_ms += 100
        number = (self.epoch << 32) + self.count
        self.number, self.checksum = number, self.write_record(number, self.meta(**meta), tensors)
        for key in forgotten:
            self.rows.pop(key, None)
            self.tombstones.add(key)
        self.rows |= rows
        self.tombstones -= set(rows)
        self.id_strings |= new_strings
        self.dense |= dense
        return number

    def write_record(self, number: int, meta: VersionMeta, tensors: Tensors) -> int:
        """Append the record of a version to the segment; return its checksum."""
        frame, checksum = encode_record(self.epoch, number, self.checksum, meta, tensors)
        with self.segment.open("ab") as file:
            file.write(frame)
        return checksum

    @property
    def all_tables(self) -> dict[str, tuple[int, list[int]]]:
        return {"": (self.dim, []), **self.tables}

    def table_of(self, key: Key) -> str:
        """Return the name of the table that holds a key; rows shared by ids are beside those of their feature."""
        return next((name for name, (_, numbers) in self.tables.items() if key[0] % 32768 in numbers), "")

    def states_of(self, rows: Iterable[Key]) -> np.ndarray:
        """Return the states of rows: a zero of the optimizer, then the wide part's numbers."""
        states = [np.concatenate([[0], self.wide.get(key, np.zeros(self.wide_width))]) for key in rows]
        return np.array(states, np.float32).reshape(-1, 1 + self.wide_width)

    def add_to_sketch(self, seen: dict[Key, int]) -> Tensors:
        """Raise the counts of the keys in the sketch, and return the blocks that changed."""
        if self.sketch is None:
            self.sketch = np.zeros((32, 64), np.uint8)
        blocks = set()
        for (feature, row_id), count in seen.items():
            key_hash = int(hash_keys(np.array([feature], np.uint16), np.array([row_id], np.int64))[0])
            block = (key_hash >> 32) * len(self.sketch) >> 32
            for i in range(4):
                cell = 4 + ((key_hash >> 8 * i & 255) * 60 >> 8)
                self.sketch[block, cell] = max(self.sketch[block, cell], count)
            blocks.add(block)
        numbers = np.array(sorted(blocks), np.int64)
        return {"sketch.block": numbers[::-1], "sketch.bytes": self.sketch[numbers[::-1]]}

    def write_base(self, num_ranges: int = 1) -> Path:
        """Write the present state as a base, rows in so many files, and return its folder; tombstones end in it."""
        self.tombstones.clear()
        folder = self.path / f".tmp-base-{self.number:020d}"
        folder.mkdir()
        for table, (dim, _) in self.all_tables.items():
            held = {key: row for key, row in self.rows.items() if self.table_of(key) == table}
            columns = row_columns(held, dim)
            key_hash = hash_keys(columns["feature"], columns["id"])
            order = np.argsort(key_hash, kind="stable")
            columns = {name: column[order] for name, column in {"mixed": key_hash, **columns}.items()}
            states = self.states_of(held)[order]
            for number in range(num_ranges):
                own = owners_of(columns["mixed"], num_ranges) == number
                ending = f"-{number + 1:05d}-of-{num_ranges:05d}.safetensors" if num_ranges > 1 else ".safetensors"
                part = {name: column[own] for name, column in columns.items()}
                write_safetensors(folder / f"rows{'.' * bool(table)}{table}{ending}", part)
                if not table:
                    write_safetensors(folder / f"optimizer{ending}", {"state": states[own]})
        dense = {f"dense.{name}": np.asarray(array) for name, array in self.dense.items()}
        write_safetensors(folder / "dense.safetensors", dense | {"state.step": np.zeros(1, np.float32)})
        if self.id_strings:
            write_safetensors(folder / "texts.safetensors", string_tensors(self.id_strings, ""))
        meta = self.meta()
        if self.sketch is not None:
            write_safetensors(folder / "sketch.safetensors", {"sketch.bytes": self.sketch})
            meta = self.meta(sketch_blocks=len(self.sketch), admission=self.admission)
        (folder / "model.pt2").write_bytes(self.archive)
        files = {
            path.name: {"bytes": path.stat().st_size, "crc32": zlib.crc32(path.read_bytes())}
            for path in sorted(folder.iterdir())
        }
        manifest = {
            "number": self.number,
            "checksum": self.checksum,
            "epoch": self.epoch,
            "created_ms": self.now_ms,
            "schema": json.loads(self.schema.to_json()),
            "table": self.table_spec(self.dim, [])
            | {"state_width": 1 + self.wide_width, "wide_width": self.wide_width, "optimizer": {"name": "adagrad"}},
            "tables": {name: self.table_spec(*table) for name, table in self.tables.items()},
            "model": {"name": "toy", "options": {}},
            "meta": json.loads(msgspec.json.encode(meta)),
            "files": files,
            "num_ranges": num_ranges,
        }
        (folder / "manifest.json").write_bytes(encode_checksummed_json(manifest))
        path = self.path / f"base-{self.number:020d}"
        folder.rename(path)
        self.newest_base = {"number": self.number, "checksum": self.checksum}
        return path

    def table_spec(self, dim: int, features: list[int]) -> dict[str, Any]:
        """Return how a table without optimizer states is described in the manifest."""
        shared = {"seed": self.seed, "init_scale": self.init_scale, "dtype": self.dtype}
        return {"dim": dim, "state_width": 0, "features": features, **shared}


def row_columns(rows: Mapping[Key, Row], dim: int) -> Tensors:
    """Return rows as the columns of a record, in the order given."""
    return {
        "feature": np.array([feature for feature, _ in rows], np.uint16),
        "id": np.array([row_id for _, row_id in rows], np.int64),
        "value": np.array([value for value, _, _ in rows.values()], np.float32).reshape(-1, dim),
        "count": np.array([count for _, count, _ in rows.values()], np.int64),
        "last_seen": np.array([last_seen for _, _, last_seen in rows.values()], np.int64),
    }


def string_tensors(strings: Mapping[Key, bytes], prefix: str) -> Tensors:
    """Return the arrays that hold these strings by key, in the order of their keys."""
    keys = sorted(strings)
    lengths = [len(strings[key]) for key in keys]
    return {
        f"{prefix}feature": np.array([feature for feature, _ in keys], np.uint16),
        f"{prefix}id": np.array([row_id for _, row_id in keys], np.int64),
        f"{prefix}offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        f"{prefix}bytes": np.frombuffer(b"".join(strings[key] for key in keys), np.uint8),
    }
