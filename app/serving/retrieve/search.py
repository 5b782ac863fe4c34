"""The k best items for a user, at one version.

An index proposes candidates by vectors that may be some versions old; every candidate is then scored with the rows
and parameters of the view. So membership and scores are of one version, and only which candidates are proposed is
approximate.
"""

# M candidates, O dimension
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.app.serving.retrieve.inverted_file import InvertedFile
from springtide.app.serving.retrieve.item_set import ItemFilter, ItemSet
from springtide.app.serving.retrieve.towers import Towers, UserInputs
from springtide.app.serving.retrieve.vector_index import ExactIndex, FloatArray, Places, largest

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
