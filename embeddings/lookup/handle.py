"""The handle of a lookup, which pins the rows of a batch; the slices in which rows are gathered; who gives it."""

# K keys of a batch, U unique keys, B bags or rows of gradients, D dimension, S state width
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from springtide.embeddings.policy.admission import RowlessKeys
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, RowColumns, UniqueKeys

POOLING_MODES = ("sum", "mean", "max")


class LookupSlice(NamedTuple):
    """Keys start..stop of a lookup: a row each, or pooled into bags.

    Bag b has the keys offsets_B1[b] to offsets_B1[b + 1], counted from `start`. An empty bag gives zeros.
    """

    start: int
    stop: int
    offsets_B1: Array | None = None
    mode: str = "mean"  # one of POOLING_MODES


class Occurrences(NamedTuple):
    """How often each key of a lookup occurs."""

    of_key_K: Array  # int64, at least 1
    total: int

    def counted(self, ops: Ops, unique: UniqueKeys) -> UniqueKeys:
        """Unique keys that were counted once for each key, with how often they occur."""
        order_K, offsets_U1 = ops.group(unique.inverse_K, unique.occurrences_U)
        xp = ops.xp
        sums_K1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(self.of_key_K[order_K])])
        return unique._replace(occurrences_U=sums_K1[offsets_U1[1:]] - sums_K1[offsets_U1[:-1]])


class Lookup(Protocol):
    """The unique keys of a batch with a row for each. The rows stay in memory until `release`, an update, or `del`.

    Keys that were not admitted are replaced by the shared keys of their features (springtide_client.keys).
    """

    @property
    def unique(self) -> UniqueKeys: ...

    def __len__(self) -> int:
        """Keys, K."""
        ...

    @property
    def released(self) -> bool: ...

    def release(self) -> None:
        """Unpin the rows. A second call does nothing."""
        ...


class TableLookup:
    """A lookup in one table, where the rows are."""

    __slots__ = ("_release", "_release_later", "erasures", "num_occurrences", "rowless", "slots_U", "tick", "unique")

    def __init__(
        self,
        release: Callable[[int], None],
        release_later: Callable[[int], None],
        *,
        tick: int,
        erasures: int,
        unique: UniqueKeys,
        slots_U: Array,
        rowless: RowlessKeys | None,
        num_occurrences: int,
    ) -> None:
        self._release: Callable[[int], None] | None = release
        self._release_later = release_later
        self.tick = tick  # of the table's clock: rows stamped with it or later are pinned
        self.erasures = erasures  # of memory.changes, when `slots_U` were found
        self.unique = unique
        self.slots_U = slots_U
        self.rowless = rowless  # admission counts them when the lookup is learned from
        self.num_occurrences = num_occurrences  # more than keys, if some stand for several

    def __len__(self) -> int:
        return len(self.unique.inverse_K)

    @property
    def released(self) -> bool:
        return self._release is None

    def release(self) -> None:
        if self._release is not None:
            release, self._release = self._release, None
            release(self.tick)

    def __del__(self) -> None:
        # the garbage collector may run this in any thread, in the middle of any call: the release is only queued
        if getattr(self, "_release", None) is not None:
            self._release_later(self.tick)


class JoinedLookup:
    """Lookups in several tables as one. They release themselves when they are garbage-collected."""

    def __init__(self, unique: UniqueKeys, lookups: Sequence[TableLookup]) -> None:
        self.unique, self.lookups, self.released = unique, lookups, False

    def __len__(self) -> int:
        return len(self.unique.inverse_K)

    def release(self) -> None:
        self.released = True
        for lookup in self.lookups:
            lookup.release()


class StepTable(Protocol):
    """A table, or several, as a model's step needs it. A prefetch or lookup goes back to its giver."""

    @property
    def ops(self) -> Ops: ...

    def prefetch(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> Any: ...

    def lookup(
        self,
        features_K: Array,
        ids_K: Array,
        event_ms_K: Array,
        *,
        scores_K: Array | None = None,
        prefetched: Any = None,
    ) -> Lookup: ...

    def gather_slice(self, lookup: Any, part: LookupSlice) -> tuple[Array, Array | None]: ...

    def update(
        self, lookup: Any, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None: ...

    def read_rows(self, lookup: Any) -> RowColumns: ...

    def write_rows(self, lookup: Any, values_UD: Array, states_US: Array) -> None: ...

    def touch(self, lookup: Any) -> None: ...
