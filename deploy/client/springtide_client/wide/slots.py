"""Slots: which rows a sample has in the wide part, one for each id of its fields, every element of a list included."""

# N samples, C categorical, D dense features, F fields, S slots of all samples, K keys
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Int64Array, UInt16Array
from springtide_client.features import Features
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields

MAX_CROSSED = 8  # elements of a list that take part in crosses: its first, the last of a sequence


class Slots(NamedTuple):
    """The slots of N samples: sample n has those from offsets_N1[n] to offsets_N1[n + 1], field after field."""

    rows_S: Int64Array  # place of the slot's row: among the keys of `wide_keys`, or after `at` among other rows
    fields_S: Int64Array
    offsets_N1: Int64Array
    crossed_from_NF: Int64Array  # the first slot of each field that takes part in crosses
    num_crossed_NF: Int64Array

    def at(self, rows_K: Int64Array) -> "Slots":
        """Return the same slots for rows of which key k has number rows_K[k] (`inverse_K` of unique keys)."""
        return self._replace(rows_S=rows_K[self.rows_S])


def bin_keys(schema: Schema, bins_ND: Int64Array) -> tuple[UInt16Array, Int64Array]:
    """Return the keys of the bins: features and ids (N * D), sample by sample. They follow those of `lookup_keys`."""
    numbers_D = np.array([schema.dense_number(name) for name in schema.dense], np.uint16)
    return np.tile(numbers_D, len(bins_ND)), np.ascontiguousarray(bins_ND).reshape(-1)


def num_crossed(schema: Schema, features: Features) -> Int64Array:
    """Return how many slots of each sample and field take part in crosses, (N, F)."""
    return np.minimum(_lengths(schema, features), MAX_CROSSED)


def slots_of(schema: Schema, features: Features) -> Slots:
    """Return the slots; their rows are places among the keys of `lookup_keys`, followed by those of `bin_keys`."""
    num_samples, num_categorical = features.categorical_NC.shape
    fields, num_dense = WideFields.of(schema), len(schema.dense)
    lengths_NF = _lengths(schema, features)
    samples_N = np.arange(num_samples)
    starts_FN: list[Int64Array] = []  # of each field, the key of its first slot in each sample
    takes_last = []
    for place, name in enumerate(schema.categorical):
        if name not in schema.share:
            starts_FN.append(samples_N * num_categorical + place)
            takes_last.append(False)
    start = num_samples * num_categorical
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        if name not in schema.share:
            starts_FN.append(start + ragged.offsets[:-1])
            takes_last.append(name in schema.sequence)
        start += len(ragged.ids_M)
    starts_FN += [start + samples_N * num_dense + place for place in range(num_dense)]
    takes_last += [False] * num_dense
    starts_NF = np.stack(starts_FN, axis=1)

    ends_G = np.cumsum(lengths_NF.reshape(-1))  # of each sample's fields, one after the other
    offsets_NF = (ends_G - lengths_NF.reshape(-1)).reshape(lengths_NF.shape)
    num_slots = int(ends_G[-1]) if len(ends_G) else 0
    if num_slots == lengths_NF.size and (lengths_NF == 1).all():
        rows_S, fields_S = starts_NF.reshape(-1), np.tile(np.arange(len(fields)), num_samples)
    else:
        shifts_G = (starts_NF - offsets_NF).reshape(-1)
        rows_S = np.arange(num_slots) + np.repeat(shifts_G, lengths_NF.reshape(-1))
        fields_S = np.repeat(np.tile(np.arange(len(fields)), num_samples), lengths_NF.reshape(-1))
    num_crossed_NF = np.minimum(lengths_NF, MAX_CROSSED)
    skipped_NF = np.where(np.array(takes_last), lengths_NF - num_crossed_NF, 0)
    offsets_N1 = np.append(offsets_NF[:, 0], num_slots)
    return Slots(rows_S, fields_S, offsets_N1, offsets_NF + skipped_NF, num_crossed_NF)


def _lengths(schema: Schema, features: Features) -> Int64Array:
    """Return how many slots each sample and field has, (N, F)."""
    fields = WideFields.of(schema)
    lengths_NF = np.ones((len(features), len(fields)), np.int64)
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        if name not in schema.share:
            lengths_NF[:, fields.names.index(name)] = np.diff(ragged.offsets)
    return lengths_NF
