"""Look-ups that wait for rows of several servers at once: each server is asked once for the keys of all of them."""

# K keys of all look-ups, M those of one part, N ids of one look-up, J look-ups, B bytes
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from springtide.kernels.cpu.serving.key_owners import place_rows, sort_by_owner
from springtide_client.array_types import Int64Array, UInt8Array
from springtide_client.format.records import Tip
from springtide_client.parts.row_request import RowRequest
from springtide_client.rows.hash_range import HashRange
from springtide_client.rows.search import RowSearch


class WaitingLookup(NamedTuple):
    """Ids of one feature. `on_found` hears their packed rows and status, or None where they have not come."""

    number: int
    ids_N: Int64Array
    on_found: Callable[[UInt8Array | None], None]


class LookupBatch:
    """Look-ups of one table at one version, and the rows that have come for them."""

    def __init__(self, lookups: Sequence[WaitingLookup], tip: Tip, table: str, dim: int, num_parts: int) -> None:
        self._lookups, self._tip, self._table = lookups, tip, table
        self._row_bytes = 4 * dim
        lengths_J = [len(lookup.ids_N) for lookup in lookups]
        self._starts_J1 = np.zeros(len(lookups) + 1, np.int64)
        np.cumsum(lengths_J, out=self._starts_J1[1:])
        ids_K = np.concatenate([lookup.ids_N for lookup in lookups])
        numbers = [lookup.number for lookup in lookups]
        features_K = np.array(numbers[:1], np.uint16)
        if len(set(numbers)) > 1:
            features_K = np.repeat(np.array(numbers, np.uint16), lengths_J)
        self._order_K, ends_R = np.empty(len(ids_K), np.int64), np.empty(num_parts, np.int64)
        sort_by_owner(features_K, ids_K, self._order_K, ends_R)
        self._features_K = features_K if len(features_K) == 1 else features_K[self._order_K]
        self._ids_K = ids_K[self._order_K]
        self._out_B = np.empty(len(ids_K) * (self._row_bytes + 1), np.uint8)
        bounds = enumerate(pairwise([0, *ends_R.tolist()]))
        # of the parts whose rows have not come: where their keys are in the order of owners
        self._missing = {index: slice(start, end) for index, (start, end) in bounds if start < end}
        self._refused: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """The parts whose rows have not come, from 0."""
        return list(self._missing)

    def request_to(self, index: int, hash_range: HashRange) -> RowRequest:
        """Return what a part is asked."""
        at = self._missing[index]
        features_M = self._features_K if len(self._features_K) == 1 else self._features_K[at]
        return RowRequest(self._tip, hash_range, self._table, False, features_M, self._ids_K[at])

    def num_bytes_of(self, index: int) -> int:
        """The length of a part's rows and status."""
        at = self._missing[index]
        return (at.stop - at.start) * (self._row_bytes + 1)

    def take(self, index: int, packed_B: UInt8Array) -> bool:
        """Take the rows of a part; True once no more are waited for."""
        place_rows(packed_B, self._order_K[self._missing.pop(index)], self._starts_J1, self._row_bytes, self._out_B)
        return len(self._refused) == len(self._missing)

    def take_own(self, index: int, search: RowSearch) -> bool:
        """Take the rows of this process's own part."""
        at = self._missing[index]
        features_M = self._features_K if len(self._features_K) == 1 else self._features_K[at]
        rows_MD, status_M = search(features_M, self._ids_K[at])
        return self.take(index, np.concatenate([rows_MD.reshape(-1).view(np.uint8), status_M]))

    def refuse(self, index: int) -> bool:
        """Give up a part whose rows will not come; True once no more are waited for."""
        self._refused.add(index)
        return len(self._refused) == len(self._missing)

    def finish(self) -> None:
        """Give each look-up its rows, or None where some of them are missing."""
        without = self._without(self._missing.values())
        starts = self._starts_J1 * (self._row_bytes + 1)
        for number, (lookup, (start, end)) in enumerate(zip(self._lookups, pairwise(starts.tolist()), strict=True)):
            lookup.on_found(None if number in without else self._out_B[start:end])

    def _without(self, missing: Iterable[slice]) -> set[int]:
        """The look-ups with keys at these places in the order of owners."""
        found: set[int] = set()
        for at in missing:
            found |= set((np.searchsorted(self._starts_J1, self._order_K[at], "right") - 1).tolist())
        return found
