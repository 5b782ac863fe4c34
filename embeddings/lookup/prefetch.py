"""The next batch's keys, made unique already, and their rows on the way up from below while this batch computes."""

# K keys of a batch, U unique keys, N keys to recall
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from embeddings.errors import SpillError
from embeddings.memory.placement import PredictedMisses
from embeddings.rows import BoolArray, Int64Array, UInt16Array
from embeddings.tiers.lower_tiers import RecalledRows
from kernels.types import UniqueKeys


@dataclass(frozen=True)
class Prefetch:
    """Good for the table's next look-up, of these same arrays. Its recall is void once anything wrote a key."""

    features_K: UInt16Array
    ids_K: Int64Array
    event_ms_K: Int64Array
    unique: UniqueKeys  # on the device
    missing: PredictedMisses  # the keys that were not in memory when the recall began
    recalled: "Future[RecalledRows] | None"  # None: all were

    def matches(self, features_K: UInt16Array, ids_K: Int64Array, event_ms_K: Int64Array) -> bool:
        return features_K is self.features_K and ids_K is self.ids_K and event_ms_K is self.event_ms_K

    def rows_if_current(self, writes: int) -> "PrefetchedRows | None":
        """The recalled rows, waited for; None where they may be stale or there are none."""
        if self.recalled is None:
            return None
        # a failure is not raised again here, for its traceback would hold on to every frame and lookup of the caller's
        if isinstance(self.recalled.exception(), SpillError) or writes != self.missing.writes:
            return None  # the look-up asks again, and is told
        return PrefetchedRows.of(self.missing.positions_N, self.recalled.result(), len(self.unique.ids_U))


@dataclass(frozen=True)
class PrefetchedRows:
    """Rows of some of a batch's unique keys, recalled before their turn."""

    place_U: Int64Array  # in `recalled`; -1: not recalled
    recalled: RecalledRows

    @staticmethod
    def of(positions_N: Int64Array, recalled: RecalledRows, num_unique: int) -> "PrefetchedRows":
        place_U = np.full(num_unique, -1, np.int64)
        place_U[positions_N] = np.arange(len(positions_N))
        return PrefetchedRows(place_U, recalled)

    def keep(self, kept_U: BoolArray, num_unique: int) -> "PrefetchedRows":
        """The same for a batch that begins with these of the keys; the others are not recalled."""
        place_V = np.full(num_unique, -1, np.int64)
        place_V[: np.count_nonzero(kept_U)] = self.place_U[kept_U]
        return PrefetchedRows(place_V, self.recalled)
