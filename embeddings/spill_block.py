"""Rows as the spill stores them: 10-byte keys in big-endian order, one packed record of fixed size each."""

# N rows
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from springtide_client.keys import UInt64Array, mix_keys

from embeddings.rows import BoolArray, Int64Array, Rows, UInt16Array
from embeddings.spill import ROW

Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class Block:
    """One write, sorted by mixed key, so that it can be searched while it waits."""

    mixed: UInt64Array
    features: UInt16Array
    ids: Int64Array
    records: Records

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        return self.mixed.nbytes + self.features.nbytes + self.ids.nbytes + self.records.nbytes

    def find(self, mixed_N: UInt64Array, features_N: UInt16Array) -> tuple[Int64Array, BoolArray]:
        """Where the keys stand, and whether they do; quickest where they ascend."""
        at_N = np.searchsorted(self.mixed, mixed_N)
        while True:
            safe_N = np.minimum(at_N, len(self) - 1)
            same_N = (at_N < len(self)) & (self.mixed[safe_N] == mixed_N)
            here_N = same_N & (self.features[safe_N] == features_N)
            # keys of two features may share a mixed key: the next one is looked at
            onward_N = same_N & ~here_N
            if not onward_N.any():
                return safe_N, here_N
            at_N = at_N + onward_N


class RecordFormat:
    """kind, values, states, count, last-seen, packed; a mark is a record whose other fields are zeros."""

    def __init__(self, dim: int, state_width: int) -> None:
        fields = [("kind", "u1"), ("values", "<f4", (dim,)), ("states", "<f4", (state_width,))]
        self.dtype = np.dtype([*fields, ("count", "<i8"), ("last_seen", "<i8")])

    def records(self, num: int) -> Any:
        """Records of kind ABSENT."""
        return np.zeros(num, self.dtype)

    def block(self, features_N: UInt16Array, ids_N: Int64Array, kind: int, rows: Rows | None) -> Block:
        """A block of rows of one kind; each key once."""
        mixed_N = mix_keys(features_N, ids_N)
        order = np.argsort(mixed_N, kind="stable")
        records = self.records(len(ids_N))
        records["kind"] = kind
        if rows is not None:
            records["values"], records["states"] = rows.values[order], rows.states[order]
            records["count"], records["last_seen"] = rows.counts[order], rows.last_seen[order]
        return Block(mixed_N[order], features_N[order], ids_N[order], records)

    def keys(self, features_N: UInt16Array, ids_N: Int64Array) -> list[bytes]:
        packed = np.empty((len(ids_N), 10), np.uint8)
        packed[:, :2] = features_N.astype(">u2").view(np.uint8).reshape(-1, 2)
        packed[:, 2:] = ids_N.astype(">i8").view(np.uint8).reshape(-1, 8)
        keys: list[bytes] = packed.view("V10").reshape(-1).tolist()
        return keys

    def values(self, records: Records) -> list[bytes]:
        values: list[bytes] = records.view(f"V{self.dtype.itemsize}").tolist()
        return values

    def live_rows(self, keys: bytes, values: bytes) -> Rows:
        """Rows of joined keys and records, without the marks."""
        records = self.parse(values)
        live = records["kind"] == ROW
        packed = np.frombuffer(keys, np.uint8).reshape(-1, 10)[live]
        features_N = np.ascontiguousarray(packed[:, :2]).view(">u2").reshape(-1).astype(np.uint16)
        ids_N = np.ascontiguousarray(packed[:, 2:]).view(">i8").reshape(-1).astype(np.int64)
        return self.rows(features_N, ids_N, records[live])

    def parse(self, joined: bytes) -> Any:
        return np.frombuffer(joined, self.dtype)

    def rows(self, features_N: UInt16Array, ids_N: Int64Array, records: Any) -> Rows:
        return Rows(
            features_N,
            ids_N,
            np.ascontiguousarray(records["values"]),
            np.ascontiguousarray(records["states"]),
            np.ascontiguousarray(records["count"]),
            np.ascontiguousarray(records["last_seen"]),
        )
