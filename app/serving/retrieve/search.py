"""The k best items for a user, at one version.

An index proposes candidates by vectors that may be some versions old; every candidate is then scored with the rows
and parameters of the view. So membership and scores are of one version, and only which candidates are proposed is
approximate.
"""

# M candidates, O dimension
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from springtide_client.features import Features

from app.serving.retrieve.item_set import ItemFilter, ItemSet, NumberRange
from app.serving.retrieve.towers import FloatArray, Towers
from app.serving.retrieve.vector_index import ExactIndex, Places, largest

MIN_CANDIDATES, CANDIDATES_PER_ITEM = 64, 3
EXACT_ITEMS = 20_000  # so many that pass a filter are all compared


@dataclass(frozen=True, eq=False)
class ServedItems:
    """What requests are answered from: a view, the items of an older version, and those that have changed since."""

    towers: Towers
    base: ItemSet
    base_towers: Towers  # the nets that made the base's vectors, over the rows of the view
    changed: ItemSet  # of the items since: new ones, others than before, and those whose vectors have moved far

    def followed_by(self, towers: Towers, newer: ItemSet) -> "ServedItems":
        """Return the same base at a later view, whose towers have encoded the items of the versions since."""
        known = self.base.describes(newer) & ~np.isin(newer.ids_I, self.changed.ids_I)
        changed = self.changed.merged(newer.subset(np.flatnonzero(~known)) if known.any() else newer)
        return ServedItems(towers, self.base, self.base_towers.at(towers.view), changed)

    def retrieve(
        self, user: Features, k: int, *, wanted: ItemFilter, excluded: npt.NDArray[np.int64], exact: bool = False
    ) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Return ids and scores of at most k items, the best first; ties by id. `exact`: compare all vectors."""
        query_O = self.towers.users(user)[0]
        base_query_O = query_O if self.base_towers is self.towers else self.base_towers.users(user)[0]
        num = max(MIN_CANDIDATES, CANDIDATES_PER_ITEM * k) + len(excluded)
        while True:
            ids_M, scores_M, is_all = self._scored(query_O, base_query_O, num, wanted, exact=exact)
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
        parts, is_all = [], True
        # an item in both is described by the newer
        for items, query, newer in ((self.changed, query_O, None), (self.base, base_query_O, self.changed)):
            places, is_whole = candidates(items, query, num, wanted, exact=exact)
            if newer is not None and len(newer):
                places = places[~np.isin(items.ids_I[places], newer.ids_I)]
            if len(places):
                parts.append(items.take(places))
            is_all &= is_whole
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.float32), is_all
        features = Features.concatenate(parts)
        vectors_MO, known_M = self.towers.items(features)
        layout = self.base.layout
        ids_M = features.categorical_NC[:, layout.part.categorical.index(layout.id_field)]
        scores_M = vectors_MO @ query_O / np.float32(self.towers.temperature)
        return ids_M[known_M], scores_M[known_M], is_all


def candidates(
    items: ItemSet, query_O: FloatArray, num: int, wanted: ItemFilter, *, exact: bool
) -> tuple[Places, bool]:
    """Return the places of the best `num` items by their vectors, and whether those are all that pass."""
    if not wanted:
        if num >= len(items):
            return np.arange(len(items)), True
        index = ExactIndex(items.vectors_IO) if exact else items.index
        return index.nearest(query_O, num), False
    passing = _passing(items, tuple(wanted.items()))
    if num >= len(passing):
        return passing, True
    if exact or items.index.is_exact or len(passing) <= EXACT_ITEMS:
        return passing[largest(items.vectors_IO[passing] @ query_O, num)], False
    # so many more that as many as wanted should pass
    found = items.index.nearest(query_O, min(len(items), 2 * num * len(items) // len(passing)))
    return found[np.isin(found, passing)], False


@lru_cache(maxsize=32)
def _passing(items: ItemSet, wanted: tuple[tuple[str, tuple[int, ...] | NumberRange], ...]) -> Places:
    return items.passing(dict(wanted))
