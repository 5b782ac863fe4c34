"""Find the rows of many keys in one call, in numpy. Servers use a compiled search with the same results."""

# K keys, M some of them, D dimension, W width of the states that serving needs
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from springtide_client.array_types import Float32Array, Indices, Int64Array, UInt8Array, UInt16Array
from springtide_client.keys import hash_keys
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.row_block import RowBlock, expiry_cutoffs_of, find_sorted
from springtide_client.rows.table_names import MAIN_TABLE

KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = 0, 1, 2, 3

# from this many keys on they are searched in the order of the layers, so that neighbors share cache lines
MIN_SORTED_KEYS = 512


@dataclass(frozen=True, eq=False)
class LayerStack:
    """The layers and counts of one version, to search in. Immutable."""

    layers: tuple[RowBlock, ...]  # newest first, the base's rows last; empty layers are left out
    dim: int
    expiry_cutoffs: Mapping[str, int]  # feature number -> ms: rows of this feature last seen earlier are expired
    admission: Mapping[str, int]  # feature number -> occurrences before an id gets a row; only these are counted
    admission_counts: AdmissionCounts
    sketch_age: int
    table: str = MAIN_TABLE  # whose rows these are
    state_width: int = 0  # of the layers' states


class FoundStates(NamedTuple):
    """Rows of some keys with the columns that only the wide part needs: zeros where there is no row."""

    rows_KD: Float32Array  # NaN where there is none
    status_K: UInt8Array
    states_KW: Float32Array
    counts_K: Int64Array


class RowSearch(Protocol):
    """Finds rows in one stack. Thread-safe."""

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows float32 (K, D), NaN where there is none, and status uint8 (K).

        `features_K` may hold one feature for all ids.
        """

    def with_states(self, features_K: UInt16Array, ids_K: Int64Array) -> FoundStates:
        """Return the rows with their states and counts; the layers must have states, or W is 0."""


SearchFactory = Callable[[LayerStack], RowSearch]


class NumpySearch:
    """Searches layer by layer, each time for the keys that are still missing."""

    def __init__(self, stack: LayerStack) -> None:
        self._stack = stack
        self._admission = np.array([int(number) for number in stack.admission], np.uint16)

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        rows_KD, status_K = np.empty((len(ids_K), self._stack.dim), np.float32), np.zeros(len(ids_K), np.uint8)
        self._find(features_K, ids_K, _Columns(rows_KD, status_K))
        return rows_KD, status_K

    def with_states(self, features_K: UInt16Array, ids_K: Int64Array) -> FoundStates:
        rows_KD, status_K = np.empty((len(ids_K), self._stack.dim), np.float32), np.zeros(len(ids_K), np.uint8)
        states_KW = np.zeros((len(ids_K), self._stack.state_width), np.float32)
        counts_K = np.zeros(len(ids_K), np.int64)
        self._find(features_K, ids_K, _Columns(rows_KD, status_K, states_KW, counts_K))
        return FoundStates(rows_KD, status_K, states_KW, counts_K)

    def _find(self, features_K: UInt16Array, ids_K: Int64Array, into: "_Columns") -> None:
        num_keys = len(ids_K)
        rows_KD, status_K = into.rows_KD, into.status_K
        if len(features_K) != num_keys:
            features_K = np.broadcast_to(features_K, num_keys)
        key_hash_K = hash_keys(features_K, ids_K)
        at_M = np.argsort(key_hash_K) if num_keys >= MIN_SORTED_KEYS else np.arange(num_keys)
        for layer in self._stack.layers:
            features_M = features_K[at_M]
            rows_M = find_sorted(layer.key_hash, layer.feature, key_hash_K[at_M], features_M)
            found_M = rows_M >= 0
            num_found = np.count_nonzero(found_M)
            if num_found == len(at_M):
                self._take(layer, rows_M, into, at_M, features_M)
                return
            if num_found:
                self._take(layer, rows_M[found_M], into, at_M[found_M], features_M[found_M])
                at_M = at_M[~found_M]
        rows_KD[at_M] = np.nan
        status_K[at_M] = UNKNOWN
        if len(self._admission) and len(at_M):
            at_M = at_M[np.isin(features_K[at_M], self._admission)]
            counted_M = self._stack.admission_counts.estimates(key_hash_K[at_M], self._stack.sketch_age) > 0
            status_K[at_M[counted_M]] = NOT_ADMITTED

    def _take(
        self,
        layer: RowBlock,
        found_rows_M: Indices,
        into: "_Columns",
        at_M: Indices,
        features_M: UInt16Array,
    ) -> None:
        """Copy rows of a layer to the positions of their keys; NaN for tombstones and expired rows."""
        into.rows_KD[at_M] = layer.value.take(found_rows_M, axis=0)
        if into.states_KW is not None:
            into.states_KW[at_M] = layer.state[found_rows_M]
        if into.counts_K is not None:
            into.counts_K[at_M] = layer.count.take(found_rows_M)
        dead_M = None if layer.tombstone is None else layer.tombstone[found_rows_M]
        if self._stack.expiry_cutoffs:
            expired_M = layer.last_seen[found_rows_M] < expiry_cutoffs_of(features_M, self._stack.expiry_cutoffs)
            dead_M = expired_M if dead_M is None else dead_M | expired_M
        if dead_M is not None and dead_M.any():
            into.rows_KD[at_M[dead_M]] = np.nan
            into.status_K[at_M[dead_M]] = FORGOTTEN
            if into.states_KW is not None:
                into.states_KW[at_M[dead_M]] = 0
            if into.counts_K is not None:
                into.counts_K[at_M[dead_M]] = 0


class _Columns(NamedTuple):
    """Where the columns of found rows are written."""

    rows_KD: Float32Array
    status_K: UInt8Array
    states_KW: Float32Array | None = None
    counts_K: Int64Array | None = None
