"""Layers of one log: the layer of a record, layers merged into one, stacks of layers that stay short."""

# D dimension
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Int64Array, UInt16Array
from springtide_client.format.tensors import Array
from springtide_client.rows.row_layer import RowLayer, empty_layer, key_order, sorted_layer
from springtide_client.rows.table_names import MAIN_TABLE, ONE_TABLE, TableNames

# rows of the largest layer in one chunk
CHUNK_ROWS = 65_536
# large layers are merged a piece at a time, with about so many bytes of the largest layer: a piece stays in the
# processor's cache, and a thread that waits for the same processor waits for one piece
PIECE_BYTES, MIN_PIECE_ROWS = 1 << 20, 1_024

COLUMNS = ("mixed", "feature", "id", "value", "count", "last_seen", "tombstone", "state")

# let a thread that waits for this processor go first
_yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


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
