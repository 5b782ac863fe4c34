"""Where a table finds rows that are not in memory: the newest base of the log. Written elsewhere, read here."""

# U unique keys, D dimension, S optimizer state width
from dataclasses import dataclass
from typing import Protocol

from embeddings.rows import BoolArray, Float32Array, Int64Array, UInt16Array


@dataclass(frozen=True)
class FoundRows:
    """An answer row by row; where nothing was found the other columns mean nothing."""

    found: BoolArray  # (U)
    values: Float32Array  # (U, D)
    states: Float32Array  # (U, S)
    counts: Int64Array
    last_seen: Int64Array


class RowSource(Protocol):
    """Rows by key, read only."""

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows: ...
