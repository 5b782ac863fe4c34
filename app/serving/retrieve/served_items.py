"""The k best items for a user, at one version: items with the vectors that they had at some version, and an index.

An index proposes candidates by vectors that may be some versions old; every candidate is then scored with the rows
and parameters of the view. So membership and scores are of one version, and only which candidates are proposed is
approximate.
"""

# I items, O dimension, M some of the items, candidates for example
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.retrieve.towers import Towers, UserInputs
from springtide.app.serving.retrieve.vector_index import ExactIndex, FloatArray, InvertedFile, Places, largest
from springtide.app.version_log.items import ItemColumns, ItemLayout
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


MIN_CANDIDATES, CANDIDATES_PER_ITEM = 64, 3
EXACT_ITEMS = 20_000  # so many that pass a filter are all compared
SIZE_RATIO = 4  # a set of changed items is at least so many times as large as the next newer one
INDEXED_CHANGES = 4_096  # fewer changed items are all compared


@dataclass(frozen=True, eq=False)
class ServedItems:
    """The source of answers: a view, the items of an older version, and those that have changed since."""

    towers: Towers
    base: ItemSet
    base_towers: Towers  # whose nets made the base's vectors
    changed: tuple[ItemSet, ...] = ()  # items of later versions that the base does not describe, newest first

    @property
    def num_changed(self) -> int:
        """How many items are searched beside the base; one that changed several times may count as several."""
        return sum(map(len, self.changed))

    def followed_by(self, towers: Towers, newer: ItemSet) -> "ServedItems":
        """Return the same base at a later view, whose towers have encoded the items of the versions since."""
        known = self.base.describes(newer)
        for items in self.changed:
            known &= items.columns.find(newer.ids_I) < 0
        index = self.base.index
        fresh = newer.subset(np.flatnonzero(~known)) if known.any() else newer
        if isinstance(index, InvertedFile):
            fresh = fresh.in_cells_of(index)
        # a set is merged with one that is not much larger: so each item is merged a few times, not in each version
        older = list(self.changed)
        while older and (not len(fresh) or len(older[0]) < SIZE_RATIO * len(fresh)):
            fresh = older.pop(0).merged(fresh)
        if isinstance(index, InvertedFile) and len(fresh) >= INDEXED_CHANGES and fresh.index.is_exact:
            fresh = fresh.indexed_like(index)
        return ServedItems(towers, self.base, self.base_towers, (fresh, *older) if len(fresh) else ())

    def retrieve(
        self, user: UserInputs, k: int, *, wanted: ItemFilter, excluded: npt.NDArray[np.int64], exact: bool = False
    ) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Return ids and scores of at most k items for one user, the best first; ties by id.

        `exact`: compare all vectors.
        """
        query_O = base_query_O = self.towers.users(user)[0]
        if self.base_towers is not self.towers:
            base_query_O = self.base_towers.users(user)[0]
        num = max(MIN_CANDIDATES, CANDIDATES_PER_ITEM * k) + len(excluded)
        while True:
            ids_M, scores_M, is_all = self._scored(query_O, base_query_O, num, wanted, exact=exact)
            if len(excluded):
                kept = ~np.isin(ids_M, excluded)
                ids_M, scores_M = ids_M[kept], scores_M[kept]
            if len(ids_M) >= k or is_all:
                break
            num *= 8  # many were forgotten or expired
        order = np.lexsort((ids_M, -scores_M))[:k]
        return ids_M[order], scores_M[order]

    def _scored(
        self, query_O: FloatArray, base_query_O: FloatArray, num: int, wanted: ItemFilter, *, exact: bool
    ) -> tuple[npt.NDArray[np.int64], FloatArray, bool]:
        """Return ids and scores of candidates at the view, and whether those are all items that pass."""
        ids, scores, is_all = [], [], True
        newer: list[ItemSet] = []
        for items in (*self.changed, self.base):
            if not len(items):
                continue
            query = base_query_O if items is self.base else query_O
            places, is_whole = candidates(items, query, num, wanted, exact=exact)
            is_all &= is_whole
            ids_M = items.ids_I[places]
            for hiding in newer:  # an item in several is described by the newest
                kept = hiding.columns.find(ids_M) < 0
                places, ids_M = places[kept], ids_M[kept]
            newer.append(items)
            scores_M, known_M = self.towers.scores(items.columns, places, query_O)
            if not known_M.all():
                ids_M, scores_M = ids_M[known_M], scores_M[known_M]
            ids.append(ids_M)
            scores.append(scores_M)
        if len(ids) == 1:
            return ids[0], scores[0], is_all
        if not ids:
            return np.zeros(0, np.int64), np.zeros(0, np.float32), is_all
        return np.concatenate(ids), np.concatenate(scores), is_all


def candidates(
    items: ItemSet, query_O: FloatArray, num: int, wanted: ItemFilter, *, exact: bool
) -> tuple[Places, bool]:
    """Return the places of the best `num` items by their vectors, and whether those are all that pass."""
    index = items.index
    if not wanted:
        if num >= len(items):
            return np.arange(len(items)), True
        return (ExactIndex(items.vectors_IO) if exact else index).nearest(query_O, num), False
    passes_I, places_M = items.passing(wanted)
    if num >= len(places_M):
        return places_M, True
    if exact or not isinstance(index, InvertedFile) or len(places_M) <= EXACT_ITEMS:
        return places_M[largest(items.vectors_IO[places_M] @ query_O, num)], False
    return index.nearest(query_O, num, passes_I), False
