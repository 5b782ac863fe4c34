"""How a view finds rows: many keys in one call. In numpy here; a server brings a compiled one that answers the same."""

# K keys, M some of them, D dimension
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from springtide_client.keys import Int64Array, mix_keys
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.layers import Float32Array, Indices, RowLayer, UInt16Array, expiry_cutoffs_of

UInt8Array = npt.NDArray[np.uint8]

KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = 0, 1, 2, 3

# from here on, keys are searched in the order of the layers: neighbors share their cache lines
SORTED_KEYS = 512


@dataclass(frozen=True, eq=False)
class LayerStack:
    """What is searched: of one version, and never changed."""

    layers: tuple[RowLayer, ...]  # newest first, the base's last; one without rows is left out
    dim: int
    expiry_cutoffs: Mapping[str, int]  # feature number -> ms: of this feature, rows last seen before are dead
    admission: Mapping[str, int]  # feature number -> what an id must be seen for a row; only these are in `seen`
    admission_counts: AdmissionCounts
    sketch_age: int


class RowSearch(Protocol):
    """Finds rows in one stack."""

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Rows float32 (K, D), NaN where there is none, and status uint8 (K). One feature may stand for all."""


SearchFactory = Callable[[LayerStack], RowSearch]


class NumpySearch:
    """Layer by layer, each time for the keys that are still missing."""

    def __init__(self, stack: LayerStack) -> None:
        self._stack = stack
        self._admission = np.array([int(number) for number in stack.admission], np.uint16)

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        num_keys = len(ids_K)
        if len(features_K) != num_keys:
            features_K = np.broadcast_to(features_K, num_keys)
        rows_KD = np.empty((num_keys, self._stack.dim), np.float32)
        status_K = np.zeros(num_keys, np.uint8)
        mixed_K = mix_keys(features_K, ids_K)
        at_M = np.argsort(mixed_K) if num_keys >= SORTED_KEYS else np.arange(num_keys)
        for layer in self._stack.layers:
            features_M = features_K[at_M]
            places_M = layer.find_mixed(mixed_K[at_M], features_M)
            found_M = places_M >= 0
            num_found = np.count_nonzero(found_M)
            if num_found == len(at_M):
                self._take(layer, places_M, rows_KD, status_K, at_M, features_M)
                return rows_KD, status_K
            if num_found:
                self._take(layer, places_M[found_M], rows_KD, status_K, at_M[found_M], features_M[found_M])
                at_M = at_M[~found_M]
        rows_KD[at_M] = np.nan
        status_K[at_M] = UNKNOWN
        if len(self._admission) and len(at_M):
            at_M = at_M[np.isin(features_K[at_M], self._admission)]
            seen_M = self._stack.admission_counts.estimates(mixed_K[at_M], self._stack.sketch_age) > 0
            status_K[at_M[seen_M]] = NOT_ADMITTED
        return rows_KD, status_K

    def _take(
        self,
        layer: RowLayer,
        places_M: Indices,
        rows_KD: Float32Array,
        status_K: UInt8Array,
        at_M: Indices,
        features_M: UInt16Array,
    ) -> None:
        """Write a layer's rows to where their keys stand; dead ones are NaN."""
        rows_KD[at_M] = layer.value.take(places_M, axis=0)
        dead_M = None if layer.forgotten is None else layer.forgotten[places_M]
        if self._stack.expiry_cutoffs:
            expired_M = layer.last_seen[places_M] < expiry_cutoffs_of(features_M, self._stack.expiry_cutoffs)
            dead_M = expired_M if dead_M is None else dead_M | expired_M
        if dead_M is not None and dead_M.any():
            rows_KD[at_M[dead_M]] = np.nan
            status_K[at_M[dead_M]] = FORGOTTEN
