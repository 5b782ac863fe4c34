"""The items of a model with two towers: what the newest sample of each item said about it.

A version carries the items of its samples, a base those that have a row. Both hold columns as id strings do:
`feature`, `id`, `offsets` and `bytes`, sorted by (feature, id). The bytes of an item are little-endian words of 8
bytes: ids of its other categorical features, lengths of its lists, dense features as float64, ids of its lists.

Compiled code reads items as three columns: it lets other threads go on, however many items there are.
"""

# N samples, I items, M some of them, C categorical features of an item, P lists, F dense features, W words, H of them
# before the lists
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from springtide.app.models.config import MODELS_WITHOUT_WIDE
from springtide.app.models.retrieval.schema_part import SchemaPart
from springtide.kernels.cpu.serving.item_columns import find_ids, merge_ids, take_offsets, take_rows, take_words
from springtide_client.features import Features, Ragged
from springtide_client.format.tensors import Arrays
from springtide_client.keys import MISSING_ID
from springtide_client.log.base import ModelIdentity
from springtide_client.schema import Schema

Int64Array = npt.NDArray[np.int64]
COLUMNS = ("feature", "id", "offsets", "bytes")
WORD = 8


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


@dataclass(frozen=True)
class ItemLayout:
    """The features of an item, in the order of the schema, and the one that is its id."""

    schema: Schema
    names: tuple[str, ...]
    id_field: str

    @staticmethod
    def of(schema: Schema, model: ModelIdentity) -> "ItemLayout | None":
        """Return the layout of a model's items; None if it has no item tower."""
        if model.name not in MODELS_WITHOUT_WIDE:
            return None
        names = tuple(model.options["item"])
        return ItemLayout(schema, names, next(name for name in names if name in schema.categorical))

    @cached_property
    def part(self) -> SchemaPart:
        """The item's features."""
        return SchemaPart.of(self.schema, self.names)

    @property
    def number(self) -> int:
        """The feature number of items' rows."""
        return self.schema.number(self.id_field)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The categorical features beside the id."""
        return tuple(name for name in self.part.categorical if name != self.id_field)

    @property
    def form(self) -> tuple[object, ...]:
        """The form that two layouts must share for one to read what the other has written."""
        part = self.part
        return self.id_field, self.others, part.multi_value, part.sequence, part.dense

    def encode(self, features: Features) -> Arrays:
        """Return the items of samples with all features of the schema, each as its last sample has it."""
        schema, part = self.schema, self.part
        ids_N = features.categorical_NC[:, schema.categorical.index(self.id_field)]
        ids_I, from_end = np.unique(ids_N[::-1], return_index=True)
        at_I = len(ids_N) - 1 - from_end
        ids_I, at_I = ids_I[ids_I != MISSING_ID], at_I[ids_I != MISSING_ID]
        others = [schema.categorical.index(name) for name in self.others]
        lists = [features.lists[schema.lists.index(name)] for name in part.lists]
        dense = [schema.dense.index(name) for name in part.dense]
        lengths = [np.diff(ragged.offsets)[at_I] for ragged in lists]
        head_IH = np.column_stack(
            [
                np.zeros((len(at_I), 0), np.int64),
                features.categorical_NC[np.ix_(at_I, others)],
                *lengths,
                features.dense_NF[np.ix_(at_I, dense)].astype(np.float64).view(np.int64),
            ]
        )
        ends_I = np.cumsum(head_IH.shape[1] + sum(lengths, np.zeros(len(at_I), np.int64)))
        starts_I = np.concatenate([[0], ends_I])[:-1].astype(np.int64)
        words_W = np.zeros(int(ends_I[-1]) if len(ends_I) else 0, np.int64)
        words_W[starts_I[:, None] + np.arange(head_IH.shape[1])] = head_IH
        at = starts_I + head_IH.shape[1]
        for ragged, lengths_I in zip(lists, lengths, strict=True):
            words_W[_places(at, lengths_I)] = ragged.ids_M[_places(ragged.offsets[:-1][at_I], lengths_I)]
            at = at + lengths_I
        return {
            "feature": np.full(len(ids_I), self.number, np.uint16),
            "id": ids_I,
            "offsets": WORD * np.concatenate([starts_I, ends_I[-1:] if len(ends_I) else [0]]).astype(np.int64),
            "bytes": words_W.astype("<i8", copy=False).view(np.uint8),
        }

    def decode(self, columns: Arrays) -> Features:
        """Return the features of items, those of `part` alone."""
        part, ids_I = self.part, columns["id"]
        words_W = np.ascontiguousarray(columns["bytes"]).view("<i8").astype(np.int64, copy=False)
        starts_I = columns["offsets"][:-1] // WORD
        num_others, num_lists, num_dense = len(self.others), len(part.lists), len(part.dense)
        head_IH = words_W[starts_I[:, None] + np.arange(num_others + num_lists + num_dense)]
        others = iter(head_IH[:, :num_others].T)
        categorical = [ids_I if name == self.id_field else next(others) for name in part.categorical]
        at, lists = starts_I + head_IH.shape[1], []
        for lengths_I in head_IH[:, num_others : num_others + num_lists].T:
            offsets = np.concatenate([[0], np.cumsum(lengths_I)]).astype(np.int64)
            lists.append(Ragged(words_W[_places(at, lengths_I)], offsets))
            at = at + lengths_I
        dense_IF = np.ascontiguousarray(head_IH[:, num_others + num_lists :]).view(np.float64).astype(np.float32)
        return Features(np.stack(categorical, axis=1), tuple(lists), dense_IF.reshape(len(ids_I), num_dense))


def items_of(tensors: Arrays) -> Arrays | None:
    """Return the items that a record brings; None if it brings none."""
    if "items.id" not in tensors:
        return None
    return {name: tensors[f"items.{name}"] for name in COLUMNS}


def items_to_arrays(items: Arrays | None) -> Arrays:
    """Return items as the tensors of a version; {} if there are none."""
    return {} if items is None or not len(items["id"]) else {f"items.{name}": items[name] for name in COLUMNS}


def _places(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index of every element of ranges that lie one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: npt.NDArray[np.int64] = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
    return places
