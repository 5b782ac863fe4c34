"""The next batch's unique keys, and their rows on the way from the lower tiers while this batch is computed."""

# K keys of a batch, U unique keys, N keys to recall
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from springtide.embeddings.errors import SpillError
from springtide.embeddings.memory.resident import PredictedMisses
from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.kernels.types import UniqueKeys


@dataclass(frozen=True)
class Prefetch:
    """Valid for the table's next lookup, of these same arrays. Recalled rows are dropped once any key was written."""

    features_K: UInt16Array
    ids_K: Int64Array
    event_ms_K: Int64Array
    unique: UniqueKeys  # on the device
    missing: PredictedMisses
    recalled: "Future[FoundRows] | None"  # None: no key was missing

    def matches(self, features_K: UInt16Array, ids_K: Int64Array, event_ms_K: Int64Array) -> bool:
        return features_K is self.features_K and ids_K is self.ids_K and event_ms_K is self.event_ms_K

    def rows_if_current(self, writes: int) -> "PrefetchedRows | None":
        """Wait for the recalled rows. None if there are none, or if they may be outdated.

        `writes`: of memory.changes, now.
        """
        if self.recalled is None:
            return None
        # result() would raise the failure again, with a traceback that refers to every frame and lookup of the caller
        if isinstance(self.recalled.exception(), SpillError) or writes != self.missing.writes:
            return None  # the lookup recalls the rows itself, and gets the error if there still is one
        return PrefetchedRows.of(self.missing.positions_N, self.recalled.result(), len(self.unique.ids_U))


@dataclass(frozen=True)
class PrefetchedRows:
    """Rows of some of a batch's unique keys that were recalled before the lookup."""

    place_U: Int64Array  # position in `recalled`; -1: not recalled
    recalled: FoundRows

    @staticmethod
    def of(positions_N: Int64Array, recalled: FoundRows, num_unique: int) -> "PrefetchedRows":
        place_U = np.full(num_unique, -1, np.int64)
        place_U[positions_N] = np.arange(len(positions_N))
        return PrefetchedRows(place_U, recalled)

    def keep(self, kept_U: BoolArray, num_unique: int) -> "PrefetchedRows":
        """The rows for a batch of `num_unique` keys that starts with the kept ones; the others are not recalled."""
        place_V = np.full(num_unique, -1, np.int64)
        place_V[: np.count_nonzero(kept_U)] = self.place_U[kept_U]
        return PrefetchedRows(place_V, self.recalled)
