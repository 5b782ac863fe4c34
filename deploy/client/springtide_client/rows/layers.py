"""Rows sorted by mixed key: one layer of a view, or a whole base. Immutable; a newer layer hides what lies below."""

# K keys asked for, n rows of a layer, D dimension, S width of the optimizer state
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from springtide_client.format.tensors import Arrays
from springtide_client.keys import mix_keys

UInt16Array = npt.NDArray[np.uint16]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class RowLayer:
    """Rows by (mixed key, feature), each key once. A forgotten one is a mark: it hides what lies below."""

    mixed: UInt64Array
    feature: UInt16Array
    id: Int64Array
    value: Float32Array  # [n, D]
    count: Int64Array
    last_seen: Int64Array
    forgotten: BoolArray | None = None  # None: no row is
    state: Float32Array | None = None  # [n, S]; None in what only serves

    def __len__(self) -> int:
        return len(self.mixed)

    @property
    def dim(self) -> int:
        return int(self.value.shape[1])

    @property
    def num_bytes(self) -> int:
        arrays = (self.mixed, self.feature, self.id, self.value, self.count, self.last_seen, self.forgotten, self.state)
        return sum(array.nbytes for array in arrays if array is not None)

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> Indices:
        """The row of each key, -1 where the layer has none."""
        return self.find_mixed(mix_keys(features_K, ids_K), features_K)

    def find_mixed(self, mixed_K: UInt64Array, features_K: UInt16Array) -> Indices:
        """`find` where the mixed keys are at hand: of equal feature and mixed key, the id is equal too."""
        if len(self.mixed) == 0:
            return np.full(len(mixed_K), -1, np.intp)
        rows_K = self.mixed.searchsorted(mixed_K)
        near_K = self.mixed.take(rows_K, mode="clip") == mixed_K
        num_near = np.count_nonzero(near_K)
        if num_near == 0:  # what most layers say to most keys
            rows_K.fill(-1)
            return rows_K
        found_K = near_K & (self.feature.take(rows_K, mode="clip") == features_K)
        if np.count_nonzero(found_K) != num_near:
            self._find_twins(mixed_K, features_K, rows_K, found_K, np.flatnonzero(near_K & ~found_K))
        if num_near != len(rows_K) or not found_K.all():
            rows_K[~found_K] = -1
        return rows_K

    def _find_twins(
        self,
        mixed_K: UInt64Array,
        features_K: UInt16Array,
        rows_K: Indices,
        found_K: BoolArray,
        places: Indices,
    ) -> None:
        """Keys of two features may have one mixed key; their rows stand side by side."""
        for k in places:
            row = rows_K[k]
            while row < len(self.mixed) and self.mixed[row] == mixed_K[k]:
                if self.feature[row] == features_K[k]:
                    rows_K[k], found_K[k] = row, True
                    break
                row += 1

    def take(self, rows: Indices | slice) -> "RowLayer":
        """Some of the rows, which must be in order."""
        return RowLayer(
            self.mixed[rows],
            self.feature[rows],
            self.id[rows],
            self.value[rows],
            self.count[rows],
            self.last_seen[rows],
            None if self.forgotten is None else self.forgotten[rows],
            None if self.state is None else self.state[rows],
        )

    def copied(self) -> "RowLayer":
        """The same rows in memory of their own."""
        return self.take(np.arange(len(self)))

    def keys_only(self) -> "RowLayer":
        """The same rows with values of width 0 and no optimizer state: keys, counts, times and tombstones."""
        return replace(self, value=self.value[:, :0], state=None)

    def without_tombstones(self) -> "RowLayer":
        """The same rows; the caller has made sure that no tombstone is among them."""
        return replace(self, forgotten=None)

    def without_state(self) -> "RowLayer":
        """The same rows as followers need them."""
        fields = (self.mixed, self.feature, self.id, self.value, self.count, self.last_seen, self.forgotten)
        return RowLayer(*fields)

    def live_mask(self, horizons: Mapping[str, int]) -> BoolArray:
        """Which rows are neither forgotten by key nor, by `horizons` (feature number -> ms), by rule."""
        alive_n = np.ones(len(self), np.bool_) if self.forgotten is None else ~self.forgotten
        if horizons:
            alive_n &= self.last_seen >= expiry_cutoffs_of(self.feature, horizons)
        return alive_n


def expiry_cutoffs_of(features_K: UInt16Array, horizons: Mapping[str, int]) -> Int64Array:
    """For each key the time before which its feature's rows are dead."""
    known = {int(number): horizon for number, horizon in horizons.items()}
    table = np.full(max(known, default=0) + 2, np.iinfo(np.int64).min)
    for number, horizon in known.items():
        table[number] = horizon
    return table.take(features_K, mode="clip")  # those behind the last known one have none


def empty_layer(dim: int, state_width: int | None = None) -> RowLayer:
    """A layer without rows."""
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
    """A layer of rows in any order, each key once."""
    layer = RowLayer(mix_keys(feature, id), feature, id, value, count, last_seen, None, state)
    if (layer.mixed[1:] > layer.mixed[:-1]).all():  # as a trainer writes them, unless some had left its memory
        return layer
    return layer.take(_order(layer.mixed, layer.feature))


def record_layer(tensors: Arrays, dim: int, state_width: int | None = None) -> RowLayer:
    """What a record does to the rows: its forgotten keys as marks, and over them its rows.

    With `state_width` the optimizer state comes along, as the merger and the next trainer need it.
    """
    layer = empty_layer(dim, state_width)
    if len(tensors.get("forgotten.id", ())):
        layer = _marks(tensors["forgotten.feature"], tensors["forgotten.id"], dim, state_width)
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
    if 2 * rows.num_bytes < sum(array.nbytes for array in tensors.values()):
        rows = rows.copied()  # else a few rows would keep all that the record says of the dense net
    return merge_layers(layer, rows)


def merge_layers(*oldest_first: RowLayer) -> RowLayer:
    """One layer that answers like the last over all before it. Marks stay: they still hide what lies below."""
    newest_first = [layer for layer in reversed(oldest_first) if len(layer)]
    if len(newest_first) < 2:
        return newest_first[0] if newest_first else oldest_first[0]
    all_rows = _concatenate(newest_first)
    return all_rows.take(_order(all_rows.mixed, all_rows.feature, once=True))


def push_layer(layers: tuple[RowLayer, ...], newer: RowLayer) -> tuple[RowLayer, ...]:
    """`layers` (oldest first) with a newer one on top; merges so that each is less than half of the one below.

    So there are at most log2(rows) layers, and a row is copied as often.
    """
    while layers and len(newer) * 2 > len(layers[-1]):
        layers, newer = layers[:-1], merge_layers(layers[-1], newer)
    return (*layers, newer) if len(newer) else layers


def flatten_layers(layers: Iterable[RowLayer], dim: int, state_width: int | None = None) -> RowLayer:
    """One layer that answers like all of them, oldest first."""
    return merge_layers(empty_layer(dim, state_width), *layers)


def _marks(feature: UInt16Array, id: Int64Array, dim: int, state_width: int | None) -> RowLayer:
    zeros = np.zeros(len(id), np.int64)
    state = None if state_width is None else np.zeros((len(id), state_width), np.float32)
    marks = sorted_layer(feature, id, np.zeros((len(id), dim), np.float32), zeros, zeros, state)
    return replace(marks, forgotten=np.ones(len(marks), np.bool_))


def _concatenate(layers: Sequence[RowLayer]) -> RowLayer:
    forgotten = state = None
    if any(layer.forgotten is not None for layer in layers):
        masks = [np.zeros(len(x), np.bool_) if x.forgotten is None else x.forgotten for x in layers]
        forgotten = np.concatenate(masks)
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
        forgotten,
        state,
    )


def _order(mixed: UInt64Array, feature: UInt16Array, *, once: bool = False) -> Indices:
    """The order by (mixed key, feature); with `once` only the first of equal keys."""
    order = np.argsort(mixed, kind="stable")  # sorted runs merge in linear time
    equal = mixed[order[1:]] == mixed[order[:-1]]
    if not equal.any():
        return order
    same = equal & (feature[order[1:]] == feature[order[:-1]])
    if not np.array_equal(same, equal):
        order = np.lexsort((feature, mixed))
        same = (mixed[order[1:]] == mixed[order[:-1]]) & (feature[order[1:]] == feature[order[:-1]])
    return order[np.concatenate([[True], ~same])] if once else order
