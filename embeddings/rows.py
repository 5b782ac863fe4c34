"""Rows as numpy arrays: what the tiers, versions and exports pass to each other."""

# N rows, D dimension, S optimizer state width
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.kernels.types import Array

UInt16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Rows, one array a column. A key occurs at most once, unless a function says otherwise."""

    features: UInt16Array
    ids: Int64Array
    values: Float32Array  # (N, D)
    states: Float32Array  # (N, S)
    counts: Int64Array
    last_seen: Int64Array

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, chosen: Int64Array | BoolArray | slice) -> "Rows":
        """Copies of the rows at these positions, or where this is true; views of those in a slice."""
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
    def empty_of(features_N: UInt16Array, ids_N: Int64Array, dim: int, state_width: int) -> "Rows":
        """Rows of zeros for these keys."""
        return Rows(features_N, ids_N, *Rows.empty(len(ids_N), dim, state_width).columns()[2:])  # type: ignore[arg-type]

    @staticmethod
    def concatenate(parts: Sequence["Rows"]) -> "Rows":
        """The rows of all parts, of which there must be at least one."""
        return Rows(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


@dataclass(frozen=True)
class TableDelta(Rows):
    """Changes of a table since the previous version: dirty rows, and tombstones of forgotten keys.

    Each key occurs once in either. To apply it, forget first and then write the rows.
    """

    forgotten_features: UInt16Array
    forgotten_ids: Int64Array

    @staticmethod
    def of(
        rows: Rows, forgotten_features: UInt16Array | None = None, forgotten_ids: Int64Array | None = None
    ) -> "TableDelta":
        """Dirty rows, and the keys that were forgotten: by default none."""
        if forgotten_features is None or forgotten_ids is None:
            forgotten_features, forgotten_ids = rows.features[:0], rows.ids[:0]
        columns = *rows.columns(), forgotten_features, forgotten_ids
        return TableDelta(*columns)  # type: ignore[arg-type]

    def where(self, chosen_N: BoolArray) -> "TableDelta":
        """The delta without the rows for which this is false."""
        if chosen_N.all():
            return self
        return TableDelta.of(self.take(chosen_N), self.forgotten_features, self.forgotten_ids)


def as_keys(features_K: Array, ids_K: Array, times_K: Array) -> tuple[Array, Array, Array]:
    """Contiguous arrays uint16, int64, int64. ValueError if lengths differ or values are not integers of that range.

    Arrays on a device must have these types already: checking their values would wait for the device.
    """
    if not features_K.shape == ids_K.shape == times_K.shape or ids_K.ndim != 1:
        raise ValueError(
            f"features {features_K.shape}, ids {ids_K.shape} and times {times_K.shape} must have one length"
        )
    if not isinstance(ids_K, np.ndarray):
        if (features_K.dtype, ids_K.dtype, times_K.dtype) != (np.uint16, np.int64, np.int64):
            raise ValueError(
                f"on a device features must be uint16 and ids int64, not {features_K.dtype} and {ids_K.dtype}"
            )
        return features_K, ids_K, times_K
    if ids_K.dtype.kind not in "iu" or features_K.dtype.kind not in "iu":
        raise ValueError(f"features and ids must be integers, not {features_K.dtype} and {ids_K.dtype}")
    if features_K.dtype != np.uint16 and len(features_K) and not 0 <= features_K.min() <= features_K.max() < 2**16:
        raise ValueError("features must be in 0..65535")
    if ids_K.dtype == np.uint64 and len(ids_K) and ids_K.max() >= 2**63:
        raise ValueError("ids must fit in int64")
    return (
        np.ascontiguousarray(features_K, np.uint16),
        np.ascontiguousarray(ids_K, np.int64),
        np.ascontiguousarray(times_K, np.int64),
    )
