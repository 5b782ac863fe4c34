"""Items with the vectors that they had at some version, and an index over them."""

# I items, O dimension, M some of the items
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.retrieve.inverted_file import InvertedFile
from springtide.app.serving.retrieve.towers import Towers
from springtide.app.serving.retrieve.vector_index import ExactIndex, FloatArray, Places
from springtide.app.version_log.item_columns import ItemColumns
from springtide.app.version_log.items import ItemLayout
from springtide.kernels.cpu.serving.item_columns import (
    LISTED_ID,
    NUMBER,
    OTHER_ID,
    OWN_ID,
    keep_passing,
    mark_equal,
    take_rows,
)

NEAR_COSINE = 0.98  # an item whose vector has moved no further is still proposed by the old one
MAX_FILTERS = 32  # whose passing items are remembered
NO_IDS = np.zeros(0, np.int64)


class NumberRange(NamedTuple):
    """Both ends are in it."""

    low: float
    high: float


# by field: the encoded ids of which an item must have one, or the range that its number must be in
ItemFilter = Mapping[str, tuple[int, ...] | NumberRange]


class PassingItems(NamedTuple):
    """Which items pass a filter, and their places."""

    passes_I: npt.NDArray[np.bool_]
    places_M: Places


@dataclass(frozen=True, eq=False)
class ItemSet:
    """Immutable. `version` is the newest that a vector is of."""

    version: int
    created_ms: int  # of that version
    layout: ItemLayout
    columns: ItemColumns
    vectors_IO: FloatArray
    index: ExactIndex | InvertedFile
    cells_I: npt.NDArray[np.int64] | None = None  # of changed items: those of the base's index
    _passing: dict[object, PassingItems] = field(init=False, default_factory=dict, repr=False)

    @staticmethod
    def encode(
        columns: ItemColumns,
        towers: Towers,
        between: Callable[[], bool] = lambda: True,
        newest_view: Callable[[], ServedView | None] = lambda: None,
    ) -> "ItemSet | None":
        """Return those of the items that have a row, with their vectors at the towers' view.

        `between` is called now and then, and ends it by returning False: then None. `newest_view`: see Towers.items.
        """
        encoded = towers.items(columns, between, newest_view)
        if encoded is None:
            return None
        vectors_IO, known_I = encoded
        if not known_I.all():
            places_M = np.flatnonzero(known_I)
            columns, vectors_IO = columns.take(places_M), vectors_IO[places_M]
        view = towers.view
        created_ms = view.client_view.meta.created_ms
        return ItemSet(view.version, created_ms, towers.template.layout, columns, vectors_IO, ExactIndex(vectors_IO))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def ids_I(self) -> npt.NDArray[np.int64]:
        """The ids, ascending."""
        return self.columns.ids_I

    def merged(self, newer: "ItemSet") -> "ItemSet":
        """Return these items with the newer ones over them."""
        if not len(self):
            return newer
        if not len(newer):
            return self
        from_M = self.columns.order_with(newer.columns)
        vectors_MO = np.empty((len(from_M), self.vectors_IO.shape[1]), np.float32)
        take_rows(from_M, self.vectors_IO, newer.vectors_IO, vectors_MO)
        cells_M = None
        if self.cells_I is not None and newer.cells_I is not None:
            cells_M = np.concatenate([self.cells_I, newer.cells_I])[from_M]
        columns = self.columns.taken_with(newer.columns, from_M)
        return replace(newer, columns=columns, vectors_IO=vectors_MO, index=ExactIndex(vectors_MO), cells_I=cells_M)

    def in_cells_of(self, index: InvertedFile) -> "ItemSet":
        """Return the items with the cells of another index in which their vectors are."""
        return replace(self, cells_I=index.cells_of(self.vectors_IO))

    def indexed_like(self, index: InvertedFile) -> "ItemSet":
        """Return the items with an index that has the cells of another."""
        assert self.cells_I is not None
        return replace(self, index=index.over(self.vectors_IO, self.cells_I))

    def describes(self, newer: "ItemSet") -> npt.NDArray[np.bool_]:
        """Return which of the newer items are here with the same features and almost the same vector."""
        same_M = np.empty(len(newer), np.bool_)
        here, there = self.columns, newer.columns
        mark_equal(
            here.find(there.ids_I),
            here.offsets_I1,
            here.words_W,
            self.vectors_IO,
            there.offsets_I1,
            there.words_W,
            newer.vectors_IO,
            np.float32(NEAR_COSINE),
            same_M,
        )
        return same_M

    def subset(self, places_M: Places) -> "ItemSet":
        """Return some of the items, given in ascending order."""
        vectors_MO = self.vectors_IO[places_M]
        columns = self.columns.take(places_M)
        return replace(self, columns=columns, vectors_IO=vectors_MO, index=ExactIndex(vectors_MO))

    def passing(self, wanted: ItemFilter) -> PassingItems:
        """Return the items that pass a filter."""
        key = tuple(wanted.items())
        if (passing := self._passing.get(key)) is None:
            passes_I = self._passes(wanted)
            passing = PassingItems(passes_I, np.flatnonzero(passes_I))
            if len(self._passing) >= MAX_FILTERS:
                self._passing.clear()
            self._passing[key] = passing
        return passing

    def _passes(self, wanted: ItemFilter) -> npt.NDArray[np.bool_]:
        passes_I, layout, columns = np.ones(len(self), np.bool_), self.layout, self.columns
        part, num_others = layout.part, len(layout.others)
        num_ids_and_lengths = num_others + len(part.lists)
        for name, values in wanted.items():
            ids_V, low, high, place = NO_IDS, 0.0, 0.0, 0
            if isinstance(values, NumberRange):
                kind, place, (low, high) = NUMBER, num_ids_and_lengths + part.dense.index(name), values
            else:
                ids_V = np.unique(np.array(values, np.int64))
                if name == layout.id_field:
                    kind = OWN_ID
                elif name in part.categorical:
                    kind, place = OTHER_ID, layout.others.index(name)
                else:
                    kind, place = LISTED_ID, part.lists.index(name)
            keep_passing(
                columns.ids_I,
                columns.offsets_I1,
                columns.words_W,
                kind,
                place,
                num_others,
                num_ids_and_lengths + len(part.dense),
                ids_V,
                np.float32(low),
                np.float32(high),
                passes_I,
            )
        return passes_I
