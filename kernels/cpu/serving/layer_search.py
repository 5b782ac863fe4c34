"""A view's row search, compiled: the same results as springtide_client.rows.search.NumpySearch."""

# K keys, D dimension, F features, L layers, n rows of a layer
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.serving.view_search import (
    NUM_COLUMNS,
    NUM_SKETCH_COLUMNS,
    fill_filter,
    mark_seen,
    search_holding_gil,
    search_layers,
)
from springtide_client.array_types import Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.search import FoundStates, LayerStack

# up to here other threads wait: they would be given the GIL for longer than the search takes
FEW_KEYS = 1_024
# a larger layer has no filter: it takes two bytes a row that no limit counts
FILTER_ROWS = 2**20
BITS_PER_ROW = 8
NO_HORIZON = np.iinfo(np.int64).min
NO_STATES, NO_COUNTS = np.empty((0, 0), np.float32), np.empty(0, np.int64)


class LayerSearch:
    """Finds rows in one stack; keeps its arrays alive, for the kernels know them by address."""

    def __init__(self, stack: LayerStack, layers: list["LayerAddresses"]) -> None:
        self._stack, self._layers = stack, layers
        self.dim = stack.dim
        self._layers_LC = np.array([known.line for known in layers], np.int64).reshape(-1, NUM_COLUMNS)
        self._horizons_F = by_feature(stack.expiry_cutoffs, NO_HORIZON)
        self._admits_F = by_feature(dict.fromkeys(stack.admission, 1), 0)
        seen = stack.admission_counts
        lines = [(len(layer.block), address(layer.block), address(layer.bytes)) for layer in seen.layers]
        self._sketch_LC = np.array(lines, np.int64).reshape(-1, NUM_SKETCH_COLUMNS)
        self._sketch_base = 0 if seen.base is None else address(seen.base)

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows float32 (K, D), NaN where there is none, and status uint8 (K). One feature may serve all keys."""
        return self._unpacked(self.packed(features_K, np.ascontiguousarray(ids_K)), len(ids_K))

    def with_states(self, features_K: UInt16Array, ids_K: Int64Array) -> FoundStates:
        """Return the rows with their states and counts, zeros where there is none."""
        states_KW = np.zeros((len(ids_K), self._stack.state_width), np.float32)
        counts_K = np.zeros(len(ids_K), np.int64)
        packed = self.packed(features_K, np.ascontiguousarray(ids_K), states_KW, counts_K)
        return FoundStates(*self._unpacked(packed, len(ids_K)), states_KW, counts_K)

    def _unpacked(self, packed: UInt8Array, num_keys: int) -> tuple[Float32Array, UInt8Array]:
        num_bytes = 4 * self.dim * num_keys
        return packed[:num_bytes].view(np.float32).reshape(num_keys, self.dim), packed[num_bytes:]

    def packed(
        self,
        features_K: UInt16Array,
        ids_K: Int64Array,
        states_KW: Float32Array = NO_STATES,
        counts_K: Int64Array = NO_COUNTS,
    ) -> UInt8Array:
        """Look up into one array of bytes: K rows of D float32, then K status bytes. The ids are contiguous.

        States and counts of rows that there are are written into the other arrays, if they are given.
        """
        num_keys = len(ids_K)
        if len(features_K) != num_keys and len(features_K) != 1:
            raise ValueError(f"{len(features_K)} features for {num_keys} ids")
        out = np.empty(num_keys * (4 * self.dim + 1), np.uint8)
        search = search_holding_gil if num_keys <= FEW_KEYS else search_layers
        num_unknown = search(self._layers_LC, self._horizons_F, features_K, ids_K, self.dim, out, states_KW, counts_K)
        if num_unknown and len(self._admits_F):
            seen = self._stack.admission_counts
            mark_seen(
                self._sketch_LC,
                self._sketch_base,
                seen.num_blocks,
                self._stack.sketch_age,
                self._admits_F,
                features_K,
                ids_K,
                out[num_keys * 4 * self.dim :],
            )
        return out


@dataclass(frozen=True)
class LayerAddresses:
    """A layer as the kernels know it."""

    rows: RowBlock
    filter: npt.NDArray[np.uint64] | None
    line: tuple[int, ...]

    @staticmethod
    def of(rows: RowBlock, *, filtered: bool) -> "LayerAddresses":
        """Its addresses, and a filter that says of most keys that the layer has not got them."""
        filter = None
        if filtered and len(rows) <= FILTER_ROWS:
            num_words = max(1, 1 << (len(rows) * BITS_PER_ROW - 1).bit_length() >> 6)
            filter = np.zeros(num_words, np.uint64)
            fill_filter(rows.key_hash, filter)
        columns = (rows.key_hash, rows.feature, rows.value, rows.last_seen)
        if not all(array.flags.c_contiguous for array in (*columns, rows.count)):
            raise ValueError("the arrays of a layer must be contiguous")
        marks = 0 if rows.tombstone is None else address(rows.tombstone)
        filter_line = (0, 0) if filter is None else (address(filter), 64 * len(filter) - 1)
        states = (0, 0)
        if rows.state.shape[1]:
            if rows.state.strides[1] != rows.state.itemsize:
                raise ValueError("the states of a row must be contiguous")
            states = (address(rows.state), rows.state.strides[0])
        addresses = (*(address(array) for array in columns), marks, *filter_line, address(rows.count), *states)
        return LayerAddresses(rows, filter, (len(rows), *addresses))


class LayerSearchCache:
    """Makes the searches of one follower's views: a layer that stays is looked at once."""

    def __init__(self) -> None:
        # by table, and by the identity of their rows, which they keep alive
        self._known: dict[str, dict[int, LayerAddresses]] = {}

    def __call__(self, stack: LayerStack) -> LayerSearch:
        before, known = self._known.get(stack.table, {}), {}
        for number, rows in enumerate(stack.layers):
            is_last = number == len(stack.layers) - 1
            known[id(rows)] = before.get(id(rows)) or LayerAddresses.of(rows, filtered=not is_last)
        self._known[stack.table] = known
        return LayerSearch(stack, list(known.values()))


def by_feature(numbers: Mapping[str, int], otherwise: int) -> Int64Array:
    """An array by feature number, long enough for those that have one."""
    array_F = np.full(max((int(feature) for feature in numbers), default=-1) + 1, otherwise, np.int64)
    for feature, number in numbers.items():
        array_F[int(feature)] = number
    return array_F


def address(array: npt.NDArray[Any]) -> int:
    """The address of the first element."""
    start: int = array.__array_interface__["data"][0]
    return start
