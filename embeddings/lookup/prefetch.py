"""The next batch's rows on the way from the lower tiers while this batch is computed."""

# U unique keys, N keys to recall
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from springtide.embeddings.errors import SpillError
from springtide.embeddings.memory.resident import PredictedMisses
from springtide.embeddings.rows import BoolArray, Int64Array
from springtide.embeddings.tiers.found_rows import FoundRows


@dataclass(frozen=True)
class Recall:
    """The rows that a table's next lookup will miss in memory. They are dropped once any key was written."""

    missing: PredictedMisses
    recalled: "Future[FoundRows] | None"  # None: no key is missing

    def rows_if_current(self, writes: int, num_unique: int) -> "PrefetchedRows | None":
        """Wait for the recalled rows. None if there are none, or if they may be outdated.

        `writes`: of memory.changes, now.
        """
        if self.recalled is None:
            return None
        # result() would raise the failure again, with a traceback that refers to every frame and lookup of the caller
        if isinstance(self.recalled.exception(), SpillError) or writes != self.missing.writes:
            return None  # the lookup recalls the rows itself, and gets the error if there still is one
        return PrefetchedRows.of(self.missing.positions_N, self.recalled.result(), num_unique)


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
