"""Call every compiled kernel of retrieval once, because loading or compiling one takes a while."""

import numpy as np

from springtide.app.serving.retrieve.towers import FEW_SAMPLES, CompiledTower
from springtide.app.serving.retrieve.vector_index import InvertedFile
from springtide.app.version_log.items import NO_ITEMS, ItemColumns
from springtide.kernels.cpu.serving.item_columns import (
    keep_passing,
    mark_equal,
    take_rows,
    unpack_items,
    unpack_items_holding_gil,
)
from springtide.kernels.cpu.serving.towers import dot_products


def warm_up() -> None:
    """Search two invented items."""
    vectors_IO = np.eye(2, dtype=np.float32)
    index = InvertedFile.build(vectors_IO)
    assert index is not None
    index.tuned(vectors_IO, 1)
    index.nearest(vectors_IO[0], 1)
    place_1 = np.zeros(1, np.int64)
    items = ItemColumns(np.arange(2), np.array([0, 1, 2]), np.zeros(2, np.int64)).merged(NO_ITEMS.take(place_1[:0]))
    items = items.merged(items)
    take_rows(place_1, vectors_IO, vectors_IO, vectors_IO[:1].copy())
    columns = items.offsets_I1, items.words_W
    mark_equal(items.find(items.ids_I), *columns, vectors_IO, *columns, vectors_IO, np.float32(0), np.ones(2, np.bool_))
    keep_passing(items.ids_I, *columns, 0, 0, 0, 1, place_1, np.float32(0), np.float32(0), np.ones(2, np.bool_))
    for unpack in (unpack_items, unpack_items_holding_gil):
        unpack(place_1, items.ids_I, *columns, 0, np.zeros(1, np.uint16), 1, 1)
    none_F = np.zeros(0, np.float32)
    tower = CompiledTower(0, place_1[:0], none_F, none_F, np.array([0, 2]), np.ones(2, np.float32))
    for num in (1, FEW_SAMPLES + 1):
        offsets_LN1 = np.zeros((0, num + 1), np.int64)
        tower.vectors(np.zeros((0, 1), np.float32), offsets_LN1, np.zeros((num, 0), np.float32))
    dot_products(vectors_IO, vectors_IO[0], np.float32(1), np.ones(2, np.float32))


if __name__ == "__main__":
    warm_up()
