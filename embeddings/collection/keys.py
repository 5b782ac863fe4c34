"""A batch's keys by table: prefetched, and looked up."""

# K keys of a batch, U unique keys, M keys of one table
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.embeddings.lookup.handle import Lookup
from springtide.embeddings.lookup.prefetch import Prefetch
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, UniqueKeys


@dataclass(frozen=True)
class TableKeys:
    """The keys of a batch that one table holds."""

    name: str
    positions_M: Array  # in K, ascending
    features_M: Array
    ids_M: Array
    event_ms_M: Array


TableLookup = tuple[TableKeys, Lookup]
HeldKeys = tuple[TableLookup, int, int]  # of one table's keys, those from start to stop


@dataclass(frozen=True)
class CollectionPrefetch:
    """The next batch's keys by table, and what each table prefetches. Valid for a lookup of these same arrays."""

    keys_K: tuple[Array, Array, Array]
    parts: tuple[tuple[TableKeys, Prefetch], ...]


class CollectionLookup(Lookup):
    """A lookup in each table that holds some of the keys. `unique` has the keys of one table after another's."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[TableLookup], unique: UniqueKeys) -> None:
        lookups = [lookup for _, lookup in parts]

        def release(tick: int) -> None:
            for lookup in lookups:
                lookup.release()

        self.parts = tuple(parts)
        # the parts release themselves when they are garbage-collected
        super().__init__(release, lambda tick: None, tick=0, erasures=0, unique=unique, slots_U=unique.ids_U[:0])


def joined_keys(ops: Ops, parts: Sequence[TableLookup], num_keys: int) -> UniqueKeys:
    """The unique keys of all tables, one table's after another's."""
    xp = ops.xp
    inverse_K, start = xp.zeros(num_keys, np.int64), 0
    for keys, lookup in parts:
        inverse_K[keys.positions_M] = lookup.unique.inverse_K + start
        start += len(lookup.unique.ids_U)
    joined = {
        name: xp.concatenate([getattr(lookup.unique, name) for _, lookup in parts])
        for name in UniqueKeys._fields
        if name != "inverse_K"
    }
    return UniqueKeys(**joined, inverse_K=inverse_K)


def held_keys(ops: Ops, parts: Sequence[TableLookup], start: int, stop: int) -> list[HeldKeys]:
    """The parts of a lookup that have some of the keys start..stop, and which of theirs these are."""
    held = []
    for keys, lookup in parts:
        first, last = (int(ops.xp.count_nonzero(keys.positions_M < bound)) for bound in (start, stop))
        if first < last:
            held.append(((keys, lookup), first, last))
    return held
