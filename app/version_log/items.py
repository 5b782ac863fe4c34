"""The items of a model with two towers: what the newest sample of each item said about it.

A version carries the items of its samples, a base those that have a row. Both hold columns as id strings do:
`feature`, `id`, `offsets` and `bytes`, sorted by (feature, id). The bytes of an item are little-endian words of 8
bytes: ids of its other categorical features, lengths of its lists, dense features as float64, ids of its lists.
"""

# N samples, I items, C categorical features of an item, P lists, F dense features, W words, H of them before the lists
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from springtide.app.models.config import MODELS_WITHOUT_WIDE
from springtide.app.models.retrieval.schema_part import SchemaPart
from springtide_client.features import Features, Ragged
from springtide_client.format.tensors import Arrays
from springtide_client.keys import MISSING_ID
from springtide_client.log.base import ModelIdentity
from springtide_client.schema import Schema

COLUMNS = ("feature", "id", "offsets", "bytes")
WORD = 8


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
