"""Rows on their way between tiers: keys with everything known of them. Plain numpy arrays."""

# N rows, D dimension, S optimizer state width
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

UInt16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Some rows; each key at most once unless its owner says otherwise."""

    features: UInt16Array
    ids: Int64Array
    values: Float32Array  # (N, D)
    states: Float32Array  # (N, S)
    counts: Int64Array
    last_seen: Int64Array

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, chosen: Int64Array | BoolArray) -> "Rows":
        """The rows at these positions, or where this is true; copied."""
        return Rows(*(column[chosen] for column in self.columns()))  # type: ignore[arg-type]

    def columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (self.features, self.ids, self.values, self.states, self.counts, self.last_seen)

    @staticmethod
    def empty(num: int, dim: int, state_width: int) -> "Rows":
        """Rows of zeros."""
        return Rows(
            np.zeros(num, np.uint16),
            np.zeros(num, np.int64),
            np.zeros((num, dim), np.float32),
            np.zeros((num, state_width), np.float32),
            np.zeros(num, np.int64),
            np.zeros(num, np.int64),
        )

    @staticmethod
    def concatenate(parts: Sequence["Rows"]) -> "Rows":
        """One after another; at least one."""
        return Rows(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


@dataclass(frozen=True)
class Touched:
    """What a version says of rows: all that moved since the cut before, and all that was forgotten. Each key once.

    Where it is applied, forgetting goes before rows.
    """

    features: UInt16Array
    ids: Int64Array
    values: Float32Array  # (N, D)
    states: Float32Array  # (N, S)
    counts: Int64Array
    last_seen: Int64Array
    forgotten_features: UInt16Array
    forgotten_ids: Int64Array

    @staticmethod
    def of(rows: Rows) -> "Touched":
        """Rows that moved, and nothing forgotten."""
        nothing = rows.features[:0], rows.ids[:0]
        return Touched(
            rows.features, rows.ids, rows.values, rows.states, rows.counts, rows.last_seen, nothing[0], nothing[1]
        )

    def __len__(self) -> int:
        return len(self.ids)
