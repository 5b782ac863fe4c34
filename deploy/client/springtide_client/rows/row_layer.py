"""Rows sorted by key hash: one layer of a view, or a whole base. Immutable; a newer layer hides older ones."""

# K keys of a lookup, n rows of the layer, D dimension, S width of the optimizer state
# D dimension
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import BoolArray, Float32Array, Indices, Int64Array, UInt16Array, UInt64Array
from springtide_client.format.tensors import Array
from springtide_client.keys import mix_keys
from springtide_client.rows.table_names import MAIN_TABLE, ONE_TABLE, TableNames

# rows of the largest layer in one chunk
CHUNK_ROWS = 65_536
# large layers are merged a piece at a time, with about so many bytes of the largest layer: a piece stays in the
# processor's cache, and a thread that waits for the same processor waits for one piece
PIECE_BYTES, MIN_PIECE_ROWS = 1 << 20, 1_024

COLUMNS = ("mixed", "feature", "id", "value", "count", "last_seen", "tombstone", "state")

# let a thread that waits for this processor go first
_yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


@dataclass(frozen=True, slots=True, eq=False)
class RowLayer:
    """Rows in the order of (mixed key, feature), each key once. A tombstone hides the key's row in older layers."""

    mixed: UInt64Array
    feature: UInt16Array
    id: Int64Array
    value: Float32Array  # [n, D]
    count: Int64Array
    last_seen: Int64Array  # event time in ms
    tombstone: BoolArray | None = None  # None: no row is a tombstone
    state: Float32Array | None = None  # [n, S]; None where only trainers would need it

    def __len__(self) -> int:
        return len(self.mixed)

    @property
    def dim(self) -> int:
        return int(self.value.shape[1])

    @property
    def num_bytes(self) -> int:
        arrays = (self.mixed, self.feature, self.id, self.value, self.count, self.last_seen, self.tombstone, self.state)
        return sum(array.nbytes for array in arrays if array is not None)

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> Indices:
        """Return the row number of each key, -1 where the layer has none."""
        return self.find_mixed(mix_keys(features_K, ids_K), features_K)

    def find_mixed(self, mixed_K: UInt64Array, features_K: UInt16Array) -> Indices:
        """Return the row number of each key, given its mixed key.

        The id need not be compared: keys with equal feature and equal mixed key have equal ids.
        """
        return find_sorted(self.mixed, self.feature, mixed_K, features_K)

    def take(self, rows: Indices | slice) -> "RowLayer":
        """Return some of the rows; `rows` must be ascending."""
        return RowLayer(
            self.mixed[rows],
            self.feature[rows],
            self.id[rows],
            self.value[rows],
            self.count[rows],
            self.last_seen[rows],
            None if self.tombstone is None else self.tombstone[rows],
            None if self.state is None else self.state[rows],
        )

    def copied(self) -> "RowLayer":
        """Return the same rows in memory of their own."""
        return self.take(np.arange(len(self)))

    def keys_only(self) -> "RowLayer":
        """Return the keys, counts, times and tombstones: what counting rows takes. Nothing is copied."""
        return replace(self, value=self.value[:, :0], state=None)

    def without_tombstones(self) -> "RowLayer":
        """Return the same rows with no tombstone column, which must mark no row."""
        return replace(self, tombstone=None)

    def live_mask(self, expiry_cutoffs: Mapping[str, int]) -> BoolArray:
        """Return which rows are neither tombstones nor expired (`expiry_cutoffs`: feature number -> ms)."""
        live_n = np.ones(len(self), np.bool_) if self.tombstone is None else ~self.tombstone
        if expiry_cutoffs:
            live_n &= self.last_seen >= expiry_cutoffs_of(self.feature, expiry_cutoffs)
        return live_n

    def live_at(self, rows: Indices, expiry_cutoffs: Mapping[str, int]) -> BoolArray:
        """Return which of some rows, given by their numbers in any order, are neither tombstones nor expired."""
        live_n = self.last_seen[rows] >= expiry_cutoffs_of(self.feature[rows], expiry_cutoffs)
        if self.tombstone is not None:
            live_n &= ~self.tombstone[rows]
        return live_n


def find_sorted(mixed_n: UInt64Array, feature_n: UInt16Array, mixed_K: UInt64Array, features_K: UInt16Array) -> Indices:
    """Return the position of each key among keys sorted by their mixed keys, -1 where it is not among them."""
    if len(mixed_n) == 0:
        return np.full(len(mixed_K), -1, np.intp)
    rows_K = mixed_n.searchsorted(mixed_K)
    near_K = mixed_n.take(rows_K, mode="clip") == mixed_K
    num_near = np.count_nonzero(near_K)
    if num_near == 0:  # the usual case: most layers hold few of the keys
        rows_K.fill(-1)
        return rows_K
    found_K = near_K & (feature_n.take(rows_K, mode="clip") == features_K)
    if np.count_nonzero(found_K) != num_near:
        # keys of several features may have the same mixed key: they are adjacent
        for k in np.flatnonzero(near_K & ~found_K):
            row = rows_K[k]
            while row < len(mixed_n) and mixed_n[row] == mixed_K[k]:
                if feature_n[row] == features_K[k]:
                    rows_K[k], found_K[k] = row, True
                    break
                row += 1
    if num_near != len(rows_K) or not found_K.all():
        rows_K[~found_K] = -1
    return rows_K


def expiry_cutoffs_of(features_K: UInt16Array, expiry_cutoffs: Mapping[str, int]) -> Int64Array:
    """Return for each key the event time before which a row of its feature is expired, int64 (K)."""
    cutoffs = {int(number): cutoff_ms for number, cutoff_ms in expiry_cutoffs.items()}
    table = np.full(max(cutoffs, default=0) + 2, np.iinfo(np.int64).min)
    for number, cutoff_ms in cutoffs.items():
        table[number] = cutoff_ms
    return table.take(features_K, mode="clip")  # features beyond the table never expire, like its last entry


def empty_layer(dim: int, state_width: int | None = None) -> RowLayer:
    """Return a layer without rows."""
    return RowLayer(
        np.empty(0, np.uint64),
        np.empty(0, np.uint16),
        np.empty(0, np.int64),
        np.empty((0, dim), np.float32),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        None,
        None if state_width is None else np.empty((0, state_width), np.float32),
    )


def sorted_layer(
    feature: UInt16Array,
    id: Int64Array,
    value: Float32Array,
    count: Int64Array,
    last_seen: Int64Array,
    state: Float32Array | None = None,
) -> RowLayer:
    """Return a layer of rows given in any order, each key once. Rows in order are not copied."""
    layer = RowLayer(mix_keys(feature, id), feature, id, value, count, last_seen, None, state)
    if (layer.mixed[1:] > layer.mixed[:-1]).all():  # trainers write rows in order, unless some had been evicted
        return layer
    return layer.take(key_order(layer.mixed, layer.feature))


def key_order(mixed: UInt64Array, feature: UInt16Array, *, once: bool = False) -> Indices:
    """Return the order by (mixed key, feature); with `once` only the first of equal keys."""
    order = np.argsort(mixed, kind="stable")  # a stable sort merges sorted runs in linear time
    equal = mixed[order[1:]] == mixed[order[:-1]]
    if not equal.any():
        return order
    same = equal & (feature[order[1:]] == feature[order[:-1]])
    if not np.array_equal(same, equal):
        order = np.lexsort((feature, mixed))
        same = (mixed[order[1:]] == mixed[order[:-1]]) & (feature[order[1:]] == feature[order[:-1]])
    return order[np.concatenate([[True], ~same])] if once else order


def record_layer(
    tensors: Mapping[str, npt.NDArray[Any]],
    dim: int,
    state_width: int | None = None,
    *,
    tables: TableNames = ONE_TABLE,
    table: str = MAIN_TABLE,
) -> RowLayer:
    """Return what a record does to the rows of a table: its forgotten keys as tombstones, and over them its rows.

    With `state_width` the layer holds optimizer states too, which compactors and trainers need.
    """
    num_bytes = sum(array.nbytes for array in tensors.values())
    tensors = tables.tensors_of(table, tensors)
    layer = empty_layer(dim, state_width)
    if len(tensors.get("forgotten.id", ())):
        layer = _tombstones(tensors["forgotten.feature"], tensors["forgotten.id"], dim, state_width)
    if not len(tensors.get("rows.id", ())):
        return layer
    rows = sorted_layer(
        tensors["rows.feature"],
        tensors["rows.id"],
        tensors["rows.value"],
        tensors["rows.count"],
        tensors["rows.last_seen"],
        None if state_width is None else tensors["rows.state"],
    )
    if 2 * rows.num_bytes < num_bytes:
        rows = rows.copied()  # else a few rows would keep the whole record, with its dense parameters, in memory
    return merge_layers(layer, rows)


def merge_layers(*oldest_first: RowLayer) -> RowLayer:
    """Return one layer that answers like the last over all before it. It keeps tombstones: older layers may remain."""
    newest_first = [layer for layer in reversed(oldest_first) if len(layer)]
    if len(newest_first) < 2:
        return newest_first[0] if newest_first else oldest_first[0]
    largest = max(newest_first, key=len)
    piece_rows = max(MIN_PIECE_ROWS, PIECE_BYTES * len(largest) // largest.num_bytes)
    if len(largest) > piece_rows:
        return _merge_in_pieces(newest_first, piece_rows)
    all_rows = _concatenate(newest_first)
    return all_rows.take(key_order(all_rows.mixed, all_rows.feature, once=True))


def push_layer(layers: tuple[RowLayer, ...], newer: RowLayer) -> tuple[RowLayer, ...]:
    """Return `layers` (oldest first) with a newer one on top, merged so that each is under half of the one below.

    So there are at most log2(rows) layers, and a row is copied at most as often.
    """
    while layers and len(newer) * 2 > len(layers[-1]):
        layers, newer = layers[:-1], merge_layers(layers[-1], newer)
    return (*layers, newer) if len(newer) else layers


def flatten_layers(layers: Iterable[RowLayer], dim: int, state_width: int | None = None) -> RowLayer:
    """Return one layer that answers like all of them, given oldest first; an empty layer for none."""
    return merge_layers(empty_layer(dim, state_width), *layers)


def aligned_chunks(layers: Sequence[RowLayer], chunk_rows: int = CHUNK_ROWS) -> Iterator[list[RowLayer]]:
    """Split all layers at the same keys, so that the chunks can be merged one after the other.

    Yields one chunk of each layer at a time, in key order, with about `chunk_rows` rows of the largest layer.
    """
    largest = max(layers, key=len)
    bounds = largest.mixed[chunk_rows::chunk_rows]
    ends = [[0, *layer.mixed.searchsorted(bounds).tolist(), len(layer)] for layer in layers]
    for i in range(len(bounds) + 1):
        yield [layer.take(slice(end[i], end[i + 1])) for layer, end in zip(layers, ends, strict=True)]


def _merge_in_pieces(newest_first: Sequence[RowLayer], piece_rows: int) -> RowLayer:
    """Merge the keys of all pieces first, so that the columns are allocated at their final size."""
    pieces = []
    for piece in aligned_chunks(newest_first, piece_rows):
        mixed = np.concatenate([layer.mixed for layer in piece])
        feature = np.concatenate([layer.feature for layer in piece])
        pieces.append((piece, key_order(mixed, feature, once=True)))
        _yield_processor()
    num_rows = sum(len(order) for _, order in pieces)
    columns: dict[str, Array] = {}
    start = 0
    for piece, order in pieces:
        rows, end = _concatenate(piece), start + len(order)
        for name in COLUMNS:
            column: Array | None = getattr(rows, name)
            if column is not None:
                if name not in columns:
                    columns[name] = np.empty((num_rows, *column.shape[1:]), column.dtype)
                # another mode than "raise" writes into `out` directly
                np.take(column, order, axis=0, out=columns[name][start:end], mode="clip")
        start = end
        _yield_processor()
    return RowLayer(**columns)


def _tombstones(feature: UInt16Array, id: Int64Array, dim: int, state_width: int | None) -> RowLayer:
    zeros = np.zeros(len(id), np.int64)
    state = None if state_width is None else np.zeros((len(id), state_width), np.float32)
    layer = sorted_layer(feature, id, np.zeros((len(id), dim), np.float32), zeros, zeros, state)
    return replace(layer, tombstone=np.ones(len(layer), np.bool_))


def _concatenate(layers: Sequence[RowLayer]) -> RowLayer:
    tombstone = state = None
    if any(layer.tombstone is not None for layer in layers):
        masks = [np.zeros(len(x), np.bool_) if x.tombstone is None else x.tombstone for x in layers]
        tombstone = np.concatenate(masks)
    states = [layer.state for layer in layers if layer.state is not None]
    if len(states) == len(layers):
        state = np.concatenate(states)
    return RowLayer(
        np.concatenate([layer.mixed for layer in layers]),
        np.concatenate([layer.feature for layer in layers]),
        np.concatenate([layer.id for layer in layers]),
        np.concatenate([layer.value for layer in layers]),
        np.concatenate([layer.count for layer in layers]),
        np.concatenate([layer.last_seen for layer in layers]),
        tombstone,
        state,
    )
