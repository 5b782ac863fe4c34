"""Items as three columns that compiled code reads: it lets other threads go on, however many items there are."""

# I items, M some of them, W words
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.app.version_log.items import WORD
from springtide.kernels.cpu.serving.item_columns import find_ids, merge_ids, take_offsets, take_rows, take_words
from springtide_client.format.tensors import Arrays

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ItemColumns:
    """Immutable. The words of item i lie from `offsets_I1[i]` to `offsets_I1[i + 1]`, as version_log.items says."""

    ids_I: Int64Array  # ascending
    offsets_I1: Int64Array
    words_W: Int64Array

    @staticmethod
    def of(items: Arrays | None) -> "ItemColumns":
        """Return copies of the columns of a version or a base."""
        if items is None:
            return ItemColumns(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))
        words_W = np.array(items["bytes"]).view("<i8").astype(np.int64, copy=False)
        return ItemColumns(np.array(items["id"]), np.array(items["offsets"]) // WORD, words_W)

    def __len__(self) -> int:
        return len(self.ids_I)

    def arrays(self) -> Arrays:
        """Return the columns as ItemLayout.decode takes them."""
        return {"id": self.ids_I, "offsets": WORD * self.offsets_I1, "bytes": self.words_W.astype("<i8").view(np.uint8)}

    def find(self, ids_M: Int64Array) -> Int64Array:
        """Return the place of each id, -1 where there is no such item."""
        places_M = np.empty(len(ids_M), np.int64)
        find_ids(self.ids_I, ids_M, places_M)
        return places_M

    def order_with(self, newer: "ItemColumns") -> Int64Array:
        """Return where each item of both, in the order of ids, is in the two laid end to end: the newer one's."""
        from_M = np.empty(len(self) + len(newer), np.int64)
        return from_M[: merge_ids(self.ids_I, newer.ids_I, from_M)]

    def taken_with(self, newer: "ItemColumns", from_M: Int64Array) -> "ItemColumns":
        """Return items that come from the two laid end to end, in ascending order of ids."""
        offsets_M1 = np.empty(len(from_M) + 1, np.int64)
        take_offsets(from_M, self.offsets_I1, newer.offsets_I1, offsets_M1)
        words_W = np.empty(int(offsets_M1[-1]), np.int64)
        take_words(from_M, self.offsets_I1, self.words_W, newer.offsets_I1, newer.words_W, offsets_M1, words_W)
        ids_M = np.empty((len(from_M), 1), np.int64)
        take_rows(from_M, self.ids_I[:, None], newer.ids_I[:, None], ids_M)
        return ItemColumns(ids_M[:, 0], offsets_M1, words_W)

    def take(self, places_M: Int64Array) -> "ItemColumns":
        """Return some of the items, given in ascending order."""
        return self.taken_with(NO_ITEMS, places_M)

    def merged(self, newer: "ItemColumns") -> "ItemColumns":
        """Return these items with the newer ones over them."""
        if not len(self) or not len(newer):
            return newer if len(newer) else self
        return self.taken_with(newer, self.order_with(newer))


NO_ITEMS = ItemColumns.of(None)
