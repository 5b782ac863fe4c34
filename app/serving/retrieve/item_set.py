"""Items with the vectors that they had at some version, and an index over them."""

# I items, O dimension, M some of the items
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from springtide_client.features import Features
from springtide_client.format.tensors import Arrays

from app.serving.retrieve.towers import Towers
from app.serving.retrieve.vector_index import ExactIndex, Places, VectorIndex
from app.version_log.items import ItemLayout
from app.version_log.read.id_dictionary import take_strings
from app.version_log.read.replay_state import newest_items

FloatArray = npt.NDArray[np.float32]

NEAR_COSINE = 0.98  # an item whose vector has moved no further is still proposed by the old one


class NumberRange(NamedTuple):
    """Both ends are in it."""

    low: float
    high: float


# by field: the encoded ids of which an item must have one, or the range that its number must be in
ItemFilter = Mapping[str, tuple[int, ...] | NumberRange]


@dataclass(frozen=True, eq=False)
class ItemSet:
    """Immutable. `version` is the newest that a vector is of."""

    version: int
    created_ms: int  # of that version
    layout: ItemLayout
    columns: Arrays  # sorted by id
    vectors_IO: FloatArray
    index: VectorIndex

    @staticmethod
    def encode(columns: Arrays | None, towers: Towers) -> "ItemSet":
        """Return those of the items that have a row, with their vectors at the towers' view."""
        layout, view = towers.template.layout, towers.view
        columns = no_items() if columns is None else columns
        vectors_IO, known_I = towers.items(layout.decode(columns))
        if not known_I.all():
            columns, vectors_IO = take_strings(columns, np.flatnonzero(known_I)), vectors_IO[known_I]
        created_ms = view.client_view.meta.created_ms
        return ItemSet(view.version, created_ms, layout, columns, vectors_IO, ExactIndex(vectors_IO))

    def __len__(self) -> int:
        return len(self.columns["id"])

    @property
    def ids_I(self) -> npt.NDArray[np.int64]:
        """The ids, ascending."""
        return self.columns["id"]

    @cached_property
    def features(self) -> Features:
        """The features of all items."""
        return self.layout.decode(self.columns)

    def merged(self, newer: "ItemSet") -> "ItemSet":
        """Return these items with the newer ones over them."""
        if not len(self):
            return newer
        if not len(newer):
            return self
        columns = newest_items([self.columns, newer.columns])
        vectors_IO = np.empty((len(columns["id"]), self.vectors_IO.shape[1]), np.float32)
        for part in (self, newer):
            vectors_IO[np.searchsorted(columns["id"], part.ids_I)] = part.vectors_IO
        return replace(newer, columns=columns, vectors_IO=vectors_IO, index=ExactIndex(vectors_IO))

    def describes(self, newer: "ItemSet") -> npt.NDArray[np.bool_]:
        """Return which of the newer items are here with the same features and almost the same vector."""
        same_M = np.zeros(len(newer), np.bool_)
        if not len(self) or not len(newer):
            return same_M
        places_M = np.minimum(np.searchsorted(self.ids_I, newer.ids_I), len(self) - 1)
        found_M = np.flatnonzero(self.ids_I[places_M] == newer.ids_I)
        here, there = take_strings(self.columns, places_M[found_M]), take_strings(newer.columns, found_M)
        cosines = np.einsum("mo,mo->m", self.vectors_IO[places_M[found_M]], newer.vectors_IO[found_M])
        same_M[found_M] = (cosines >= NEAR_COSINE) & _equal_bytes(here, there)
        return same_M

    def subset(self, places_M: Places) -> "ItemSet":
        """Return some of the items, given in ascending order."""
        vectors_MO = self.vectors_IO[places_M]
        columns = take_strings(self.columns, places_M)
        return replace(self, columns=columns, vectors_IO=vectors_MO, index=ExactIndex(vectors_MO))

    def passing(self, wanted: ItemFilter) -> Places:
        """Return the places of the items that pass a filter."""
        passes_I = np.ones(len(self), np.bool_)
        part, features = self.layout.part, self.features
        for name, values in wanted.items():
            if isinstance(values, NumberRange):
                numbers_I = features.dense_NF[:, part.dense.index(name)]
                passes_I &= (numbers_I >= values.low) & (numbers_I <= values.high)
            elif name in part.categorical:
                passes_I &= np.isin(features.categorical_NC[:, part.categorical.index(name)], values)
            else:
                ragged = features.lists[part.lists.index(name)]
                counts = np.concatenate([[0], np.cumsum(np.isin(ragged.ids_M, values))])
                passes_I &= counts[ragged.offsets[1:]] > counts[ragged.offsets[:-1]]
        return np.flatnonzero(passes_I)

    def take(self, places_M: Places) -> Features:
        """Return the features of some of the items."""
        return self.layout.decode(take_strings(self.columns, places_M))


def _equal_bytes(left: Arrays, right: Arrays) -> npt.NDArray[np.bool_]:
    """Return for each two items of equal place whether their features are equal."""
    lengths_M = np.diff(left["offsets"])
    equal_M: npt.NDArray[np.bool_] = lengths_M == np.diff(right["offsets"])
    if equal_M.all():
        differs = np.concatenate([[0], np.cumsum(left["bytes"] != right["bytes"])])
        equal_M = differs[left["offsets"][1:]] == differs[left["offsets"][:-1]]
    else:
        kept = np.flatnonzero(equal_M)
        equal_M[kept] = _equal_bytes(take_strings(left, kept), take_strings(right, kept))
    return equal_M


def no_items() -> Arrays:
    """Return columns without items."""
    return {
        "feature": np.zeros(0, np.uint16),
        "id": np.zeros(0, np.int64),
        "offsets": np.zeros(1, np.int64),
        "bytes": np.zeros(0, np.uint8),
    }
