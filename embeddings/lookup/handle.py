"""The handle of a lookup, which pins the rows of a batch; the slices in which rows are gathered; who gives it."""

# K keys of a batch, U unique keys, B bags or rows of gradients, D dimension, S state width
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.memory.resident import ResidentRows
from springtide.embeddings.policy.admission import RowlessKeys
from springtide.embeddings.rows import BoolArray, as_keys
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, RowColumns, UniqueKeys

POOLING_MODES = ("sum", "mean", "max")


class LookupSlice(NamedTuple):
    """Keys start..stop of a lookup: a row each, or pooled into bags.

    Bag b has the keys offsets_B1[b] to offsets_B1[b + 1], counted from `start`. An empty bag gives zeros. `scales_K`,
    float32, of bags with mode "sum": by what each key's row is multiplied.
    """

    start: int
    stop: int
    offsets_B1: Array | None = None
    mode: str = "mean"  # one of POOLING_MODES
    scales_K: Array | None = None


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

    __slots__ = ("_memory", "counts_each", "erasures", "num_occurrences", "rowless", "slots_U", "tick", "unique")

    def __init__(
        self,
        memory: ResidentRows,
        *,
        tick: int,
        unique: UniqueKeys,
        slots_U: Array,
        rowless: RowlessKeys | None,
        num_occurrences: int | None = None,
    ) -> None:
        self._memory: ResidentRows | None = memory  # None: released
        self.tick = tick  # of the table's clock: rows stamped with it or later are pinned
        self.erasures = memory.changes.erasures  # when `slots_U` were found
        self.unique = unique
        self.slots_U = slots_U
        self.rowless = rowless  # admission counts them when the lookup is learned from
        # False: some keys may count several times and others not at all, even where the sum is the number of keys
        self.counts_each = num_occurrences is None
        self.num_occurrences = len(unique.inverse_K) if num_occurrences is None else num_occurrences

    def __len__(self) -> int:
        return len(self.unique.inverse_K)

    @property
    def released(self) -> bool:
        return self._memory is None

    def release(self) -> None:
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory.release(self.tick)

    def __del__(self) -> None:
        # the garbage collector may run this in any thread, in the middle of any call: the release is only queued
        memory = getattr(self, "_memory", None)
        if memory is not None:
            memory.release_later(self.tick)


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


@dataclass(frozen=True)
class Prefetch:
    """The next batch's unique keys, and their rows on the way. Valid for the table's next lookup of these arrays."""

    keys_K: tuple[Array, Array, Array]
    unique: UniqueKeys  # on the device
    fetch: Any  # as `begin_fetch` returned it


L = TypeVar("L", bound=Lookup)


class LookupTable(ABC, Generic[L]):
    """A table, several, or those of all ranks, whose keys are looked up. A lookup goes back to its giver.

    Only the lookup of unique keys, and what follows it, is a table's own.
    """

    ops: Ops

    @on_current_stream
    def prefetch(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> Prefetch:
        """Start to fetch the next batch's rows. Counts neither as an access nor towards admission.

        Pass the result to the next lookup, with the same three arrays.
        """
        unique = self.unique(features_K, ids_K, event_ms_K)
        return Prefetch((features_K, ids_K, event_ms_K), unique, self.begin_fetch(unique))

    @on_current_stream
    def lookup(
        self,
        features_K: Array,
        ids_K: Array,
        event_ms_K: Array,
        *,
        scores_K: Array | None = None,
        counted_K: BoolArray | None = None,
        prefetched: Prefetch | None = None,
    ) -> L:
        """Make every key's row resident and pin it.

        scores_K: with custom eviction, a priority for every key; rows of the lowest are evicted first. counted_K, on
        the host: the keys that count as seen, for rows and for admission; all learn.
        """
        keys_K, fetch = (features_K, ids_K, event_ms_K), None
        if prefetched is None:
            unique = self.unique(*keys_K)
        else:
            if not all(before is now for before, now in zip(prefetched.keys_K, keys_K, strict=True)):
                raise ValueError("these are not the keys that were prefetched: pass the same arrays")
            unique, fetch = prefetched.unique, prefetched.fetch
        if counted_K is None:
            return self.lookup_unique(unique, scores_K=scores_K, fetch=fetch)
        (counted,) = self.ops.put(np.flatnonzero(counted_K))
        occurrences_U = self.ops.count_values(unique.inverse_K[counted], len(unique.ids_U))
        return self.lookup_unique(
            unique._replace(occurrences_U=occurrences_U), scores_K=scores_K, fetch=fetch, num_occurrences=len(counted)
        )

    def unique(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> UniqueKeys:
        """The unique keys, on the device."""
        return self.ops.unique(*self.ops.put(*as_keys(features_K, ids_K, event_ms_K)))

    @abstractmethod
    def begin_fetch(self, unique: UniqueKeys) -> Any:
        """Start to fetch the rows of keys that will be looked up next."""

    @abstractmethod
    def lookup_unique(
        self,
        unique: UniqueKeys,
        *,
        scores_K: Array | None = None,
        fetch: Any = None,
        num_occurrences: int | None = None,
    ) -> L:
        """Make the rows of unique keys resident and pin them. `fetch`: what `begin_fetch` returned for them.

        `num_occurrences`: the sum of `occurrences_U`, where not every key counts once.
        """

    @abstractmethod
    def touch(self, lookup: L) -> None:
        """Count a lookup's occurrences as an update does, without a gradient, and release it."""


class StepTable(LookupTable[L]):
    """A table of this process, or several, as a model's step needs them."""

    def gather(self, lookup: L) -> Array:
        """Copies of the rows of a lookup's keys, (K, D); NaN for keys forgotten since."""
        return self.gather_slice(lookup, LookupSlice(0, len(lookup)))[0]

    @abstractmethod
    def gather_slice(self, lookup: L, part: LookupSlice) -> tuple[Array, Array | None]:
        """The rows of some keys, or of bags of them. For `max` also which key of the slice won each number, else -1."""

    @abstractmethod
    def update(self, lookup: L, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None) -> None:
        """Sum the gradients of each key in the order of the batch, update its row, and release the lookup.

        Key k has the gradient in row bags_K[k] (default: k), times scales_K[k] (default: 1). Counts, last-seen and
        admission's counts of keys without a row advance too. A gradient that is not finite leaves the row's values and
        state unchanged and is counted.
        """

    @abstractmethod
    def read_rows(self, lookup: L) -> RowColumns:
        """Copies of the rows of a lookup's unique keys, with all their columns, on the device.

        Values (U, D), states (U, S): the optimizer's, then the wide columns. A key forgotten since has NaN and zeros.
        """

    @abstractmethod
    def write_rows(self, lookup: L, values_UD: Array, states_US: Array) -> None:
        """Write values and states of a lookup's unique keys back, as `read_rows` gave them and a learner changed them.

        Nothing is counted, and the lookup stays open. Keys forgotten since are skipped. bfloat16 rows are rounded
        stochastically.
        """
