"""Layers: blocks of rows in key order, of which a newer one hides older ones. How they are read, merged and cut."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.format.tensors import Array
from springtide_client.rows.row_block import RowBlock, key_order
from springtide_client.rows.table_names import MAIN_TABLE, ONE_TABLE, ROW_TENSORS, TableNames

# rows of the largest layer in one chunk
CHUNK_ROWS = 65_536
# large layers are merged a piece at a time, with about so many bytes of the largest layer: a piece stays in the
# processor's cache, and a thread that waits for the same processor waits for one piece
PIECE_BYTES, MIN_PIECE_ROWS = 1 << 20, 1_024

# merges layers, given oldest first, as `merge_layers` does
LayerMerge = Callable[..., RowBlock]

# let a thread that waits for this processor go first
_yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


def record_layer(
    tensors: Mapping[str, npt.NDArray[Any]],
    dim: int,
    state_width: int = 0,
    *,
    tables: TableNames = ONE_TABLE,
    table: str = MAIN_TABLE,
) -> RowBlock:
    """Return what a record does to the rows of a table: its forgotten keys as tombstones, and over them its rows.

    With `state_width` the layer holds optimizer states too, which compactors and trainers need.
    """
    num_bytes = sum(array.nbytes for array in tensors.values())
    tensors = tables.tensors_of(table, tensors)
    layer = RowBlock.zeros(0, dim, state_width)
    if len(tensors.get("forgotten.id", ())):
        keys = RowBlock.of_keys(tensors["forgotten.feature"], tensors["forgotten.id"], dim, state_width)
        layer = keys.in_key_order().deleted()
    if not len(tensors.get("rows.id", ())):
        return layer
    if not state_width:
        tensors = {**tensors, "rows.state": np.empty((len(tensors["rows.id"]), 0), np.float32)}
    columns: list[Array] = [tensors[name] for name in ROW_TENSORS]
    rows = RowBlock(*columns).in_key_order()
    if 2 * rows.num_bytes < num_bytes:
        rows = rows.copied()  # else a few rows would keep the whole record, with its dense parameters, in memory
    return merge_layers(layer, rows)


def merge_layers(*oldest_first: RowBlock) -> RowBlock:
    """Return one layer that answers like the last over all before it. It keeps tombstones: older layers may remain."""
    newest_first = [layer for layer in reversed(oldest_first) if len(layer)]
    if len(newest_first) < 2:
        return newest_first[0] if newest_first else oldest_first[0]
    largest = max(newest_first, key=len)
    piece_rows = max(MIN_PIECE_ROWS, PIECE_BYTES * len(largest) // largest.num_bytes)
    if len(largest) > piece_rows:
        return _merge_in_pieces(newest_first, piece_rows)
    all_rows = RowBlock.concatenate(newest_first)
    return all_rows.take(key_order(all_rows.key_hash, all_rows.feature, once=True))


def push_layer(layers: tuple[RowBlock, ...], newer: RowBlock) -> tuple[RowBlock, ...]:
    """Return `layers` (oldest first) with a newer one on top, merged so that each is under half of the one below.

    So there are at most log2(rows) layers, and a row is copied at most as often.
    """
    while layers and len(newer) * 2 > len(layers[-1]):
        layers, newer = layers[:-1], merge_layers(layers[-1], newer)
    return (*layers, newer) if len(newer) else layers


def flatten_layers(layers: Iterable[RowBlock], dim: int, state_width: int = 0) -> RowBlock:
    """Return one layer that answers like all of them, given oldest first; an empty layer for none."""
    return merge_layers(RowBlock.zeros(0, dim, state_width), *layers)


def aligned_chunks(layers: Sequence[RowBlock], chunk_rows: int = CHUNK_ROWS) -> Iterator[list[RowBlock]]:
    """Split all layers at the same keys, so that the chunks can be merged one after the other.

    Yields one chunk of each layer at a time, in key order, with about `chunk_rows` rows of the largest layer.
    """
    largest = max(layers, key=len)
    bounds = largest.key_hash[chunk_rows::chunk_rows]
    ends = [[0, *layer.key_hash.searchsorted(bounds).tolist(), len(layer)] for layer in layers]
    for i in range(len(bounds) + 1):
        yield [layer.take(slice(end[i], end[i + 1])) for layer, end in zip(layers, ends, strict=True)]


def _merge_in_pieces(newest_first: Sequence[RowBlock], piece_rows: int) -> RowBlock:
    """Merge the keys of all pieces first, so that the columns are allocated at their final size."""
    pieces = []
    for piece in aligned_chunks(newest_first, piece_rows):
        key_hash = np.concatenate([layer.key_hash for layer in piece])
        feature = np.concatenate([layer.feature for layer in piece])
        pieces.append((piece, key_order(key_hash, feature, once=True)))
        _yield_processor()
    num_rows = sum(len(order) for _, order in pieces)
    columns: dict[str, Array] = {}
    start = 0
    for piece, order in pieces:
        rows, end = RowBlock.concatenate(piece), start + len(order)
        for name, column in rows.columns().items():
            if name not in columns:
                columns[name] = np.empty((num_rows, *column.shape[1:]), column.dtype)
            # another mode than "raise" writes into `out` directly
            np.take(column, order, axis=0, out=columns[name][start:end], mode="clip")
        start = end
        _yield_processor()
    return RowBlock(**columns)
