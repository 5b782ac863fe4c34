"""A log directory written by hand, as its specification says, beside a dictionary that knows what it must mean."""

import json
import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import VersionMeta, encode_record
from springtide_client.keys import mix_keys
from springtide_client.schema import Schema

Key = tuple[int, int]
Row = tuple[np.ndarray, int, int]  # value, count, last seen

DTYPES = {"float32": "F32", "int64": "I64", "uint16": "U16", "uint64": "U64", "uint8": "U8"}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, blobs, at = {}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class ToyLog:
    """One log, one trainer epoch at a time."""

    def __init__(self, path: Path, schema: Schema, archive: bytes, *, dim: int = 4, seed: int = 7) -> None:
        self.path, self.schema, self.archive = path, schema, archive
        self.dim, self.seed, self.init_scale = dim, seed, 0.05
        self.rows: dict[Key, Row] = {}
        self.marks: set[Key] = set()
        self.dense: dict[str, np.ndarray] = {}
        self.sketch: np.ndarray | None = None
        self.admission: dict[str, int] = {}
        self.dtype = "float32"
        self.number, self.checksum = 0, 0
        self.now_ms = 1_700_000_000_000
        path.mkdir(parents=True, exist_ok=True)
        self.sealed: list[dict] = []
        self.epoch = 0
        self.start_epoch()

    def start_epoch(self) -> None:
        """Claim, seal the predecessor, begin an own segment; the first one writes the empty base."""
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
        tip = {"number": self.number, "checksum": self.checksum}
        document = {
            "epoch": self.epoch,
            "sealed": self.sealed,
            "base": self.newest_base,
            "tip": tip,
            "schema": json.loads(self.schema.to_json()),
            "fingerprint": self.schema.fingerprint(),
        }
        unfinished = self.path / ".tmp-manifest"
        unfinished.write_bytes(encode_checksummed_json(document))
        unfinished.rename(self.path / f"manifest-{self.epoch:010d}.json")

    def meta(self, **changes: object) -> VersionMeta:
        facts: dict = {
            "created_ms": self.now_ms,
            "complete_until_ms": self.now_ms,
            "samples_trained": 0,
            "step": 0,
            "positions": {},
            "event_clock_ms": 0,
            "expiry_cutoffs": {},
            "fingerprint": self.schema.fingerprint(),
            "scores": {},
            "dead_letters": {},
            "record_ms": [],
            "executed_commands": [],
            "trainer": {},
        }
        return VersionMeta(**facts | changes)

    def append(
        self,
        rows: dict[Key, Row] | None = None,
        forgotten: list[Key] = [],  # noqa: B006
        dense: dict[str, np.ndarray] | None = None,
        seen: dict[Key, int] | None = None,
        **meta: object,
    ) -> int:
        """One version: forgetting, then rows; returns its number."""
        rows = rows or {}
        tensors: dict[str, np.ndarray] = {}
        if rows:
            tensors |= {
                "rows.feature": np.array([feature for feature, _ in rows], np.uint16),
                "rows.id": np.array([row_id for _, row_id in rows], np.int64),
                "rows.value": np.array([value for value, _, _ in rows.values()], np.float32).reshape(-1, self.dim),
                "rows.state": np.zeros((len(rows), 1), np.float32),
                "rows.count": np.array([count for _, count, _ in rows.values()], np.int64),
                "rows.last_seen": np.array([seen for _, _, seen in rows.values()], np.int64),
            }
        if forgotten:
            tensors |= {
                "forgotten.feature": np.array([feature for feature, _ in forgotten], np.uint16),
                "forgotten.id": np.array([row_id for _, row_id in forgotten], np.int64),
            }
        tensors |= {f"dense.{name}": array for name, array in (dense or {}).items()}
        if seen:
            tensors |= self.count_in(seen)
        if self.sketch is not None:
            meta = {"sketch_blocks": len(self.sketch), "admission": self.admission} | meta
        tensors["state.optimizer.step"] = np.zeros(1, np.float32)
        self.count += 1
        self.now_ms += 100
        number = (self.epoch << 32) + self.count
        frame, checksum = encode_record(self.epoch, number, self.checksum, self.meta(**meta), tensors)
        with self.segment.open("ab") as file:
            file.write(frame)
        self.number, self.checksum = number, checksum
        for key in forgotten:
            self.rows.pop(key, None)
            self.marks.add(key)
        self.rows |= rows
        self.marks -= set(rows)
        self.dense |= dense or {}
        return number

    def count_in(self, seen: dict[Key, int]) -> dict[str, np.ndarray]:
        """The keys in the sketch, each at least so often; the blocks that changed."""
        if self.sketch is None:
            self.sketch = np.zeros((32, 64), np.uint8)
        blocks = set()
        for (feature, row_id), count in seen.items():
            mixed = int(mix_keys(np.array([feature], np.uint16), np.array([row_id], np.int64))[0])
            block = (mixed >> 32) * len(self.sketch) >> 32
            for i in range(4):
                at = 4 + ((mixed >> 8 * i & 255) * 60 >> 8)
                self.sketch[block, at] = max(self.sketch[block, at], count)
            blocks.add(block)
        numbers = np.array(sorted(blocks), np.int64)
        return {"sketch.block": numbers[::-1], "sketch.bytes": self.sketch[numbers[::-1]]}

    def write_base(self) -> Path:
        """The present as a base; marks of forgotten ids end in it."""
        self.marks.clear()
        keys = list(self.rows)
        features = np.array([feature for feature, _ in keys], np.uint16)
        ids = np.array([row_id for _, row_id in keys], np.int64)
        order = np.argsort(mix_keys(features, ids), kind="stable")
        values = np.array([self.rows[key][0] for key in keys], np.float32).reshape(-1, self.dim)
        folder = self.path / f".tmp-base-{self.number:020d}"
        folder.mkdir()
        write_safetensors(
            folder / "rows.safetensors",
            {
                "mixed": mix_keys(features, ids)[order],
                "feature": features[order],
                "id": ids[order],
                "value": values[order],
                "count": np.array([self.rows[key][1] for key in keys], np.int64)[order],
                "last_seen": np.array([self.rows[key][2] for key in keys], np.int64)[order],
            },
        )
        write_safetensors(folder / "optimizer.safetensors", {"state": np.zeros((len(keys), 1), np.float32)})
        dense = {f"dense.{name}": np.asarray(array) for name, array in self.dense.items()}
        write_safetensors(folder / "dense.safetensors", dense | {"state.step": np.zeros(1, np.float32)})
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
            "table": {
                "dim": self.dim,
                "state_width": 1,
                "seed": self.seed,
                "init_scale": self.init_scale,
                "dtype": self.dtype,
                "optimizer": {"name": "rowwise-adagrad", "lr": 0.05},
            },
            "model": {"name": "toy", "options": {}},
            "meta": json.loads(msgspec.json.encode(meta)),
            "files": files,
        }
        (folder / "manifest.json").write_bytes(encode_checksummed_json(manifest))
        path = self.path / f"base-{self.number:020d}"
        folder.rename(path)
        self.newest_base = {"number": self.number, "checksum": self.checksum}
        return path
