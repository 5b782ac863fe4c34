"""Layers merged into one, compiled: the same rows as springtide_client.rows.layers.merge_layers, each copied once.

A call keeps the GIL for none of it: numpy's merge takes it back some ten times for each MB, and every time the event
loop has to give it away.
"""

# L layers newest first, n rows of a layer, M rows of the merged one
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import copy_bytes, read_uint16, read_uint64, write_uint64
from springtide.kernels.cpu.serving.layer_search import address
from springtide.kernels.njit import njit
from springtide_client.rows.row_block import RowBlock

# columns of a layer's line: number of rows, addresses of its key hashes and features
LENGTH, KEY_HASH, FEATURE = 0, 1, 2
WORD_BYTES = 8


def merge_sorted(*oldest_first: RowBlock) -> RowBlock:
    """Return one layer equal to the last one over all before it. It keeps tombstones, as older layers may remain."""
    newest_first = [layer for layer in reversed(oldest_first) if len(layer)]
    if len(newest_first) < 2:
        return newest_first[0] if newest_first else oldest_first[0]
    # each layer's columns, contiguous, kept alive while the kernels know them by address
    columns = [
        {
            name: np.ascontiguousarray(column)
            for name, column in {**layer.columns(), "known_hash": layer.key_hash}.items()
        }
        for layer in newest_first
    ]
    if any("tombstone" in own for own in columns):
        for own, layer in zip(columns, newest_first, strict=True):
            own["tombstone"] = np.ascontiguousarray(layer.tombstones())
    lines = [(len(own["id"]), address(own["known_hash"]), address(own["feature"])) for own in columns]
    num_rows = sum(length for length, _, _ in lines)
    layer_M, row_M = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    num_rows = order_rows(np.array(lines, np.int64), layer_M, row_M)
    merged = {}
    for name, first in columns[0].items():
        if any(own[name].dtype != first.dtype or own[name].shape[1:] != first.shape[1:] for own in columns):
            raise ValueError(f"layers differ in the width or the type of {name}")
        merged[name] = np.empty((num_rows, *first.shape[1:]), first.dtype)
        row_bytes = first.itemsize * int(np.prod(first.shape[1:]))
        addresses_L = np.array([address(own[name]) for own in columns], np.int64)
        copy_rows(addresses_L, row_bytes, layer_M[:num_rows], row_M[:num_rows], address(merged[name]))
    return RowBlock(**merged)


@njit(nogil=True, cache=True)
def order_rows(lines_LC: Any, layer_M: Any, row_M: Any) -> Any:
    """Write where each merged row comes from, in key order, of equal keys the newest; return how many there are."""
    num_layers = len(lines_LC)
    next_L = np.zeros(num_layers, np.int64)
    num_rows, last_hash, last_feature = 0, np.uint64(0), np.uint16(0)
    while True:
        first = -1
        first_hash, first_feature = np.uint64(0), np.uint16(0)
        for layer in range(num_layers):
            row = next_L[layer]
            if row == lines_LC[layer, LENGTH]:
                continue
            key_hash = read_uint64(lines_LC[layer, KEY_HASH], row)
            if first >= 0 and key_hash > first_hash:
                continue
            feature = read_uint16(lines_LC[layer, FEATURE], row)
            if first < 0 or key_hash < first_hash or feature < first_feature:
                first, first_hash, first_feature = layer, key_hash, feature
        if first < 0:
            return num_rows
        if num_rows == 0 or first_hash != last_hash or first_feature != last_feature:
            layer_M[num_rows], row_M[num_rows] = first, next_L[first]
            num_rows += 1
            last_hash, last_feature = first_hash, first_feature
        next_L[first] += 1


@njit(nogil=True, cache=True)
def copy_rows(addresses_L: Any, row_bytes: Any, layer_M: Any, row_M: Any, target: Any) -> None:
    """Copy one column's rows from the layers to the merged one."""
    if row_bytes == WORD_BYTES:
        for m in range(len(row_M)):
            write_uint64(target + m * WORD_BYTES, read_uint64(addresses_L[layer_M[m]], row_M[m]))
        return
    for m in range(len(row_M)):
        copy_bytes(target + m * row_bytes, addresses_L[layer_M[m]] + row_M[m] * row_bytes, row_bytes)
