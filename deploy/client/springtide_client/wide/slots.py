"""Slots: which rows a sample has in the wide part, one for each id of its fields, every element of a list included.

And crosses: a row for each pair of ids of different fields that came together, found by a hash of the two.
"""

# N samples, C categorical or crosses of all samples, D dense features, F fields, P pairs of fields, S slots,
# K keys, U rows, E crossed slots of a field at most
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, Float64Array, Indices, Int64Array, UInt16Array, UInt64Array
from springtide_client.features import Features
from springtide_client.keys import GOLDEN_64, hash_keys, mix64_array
from springtide_client.schema import Schema
from springtide_client.wide.layout import born_column

MAX_CROSSED = 8  # elements of a list that take part in crosses: its first, the last of a sequence


class Slots(NamedTuple):
    """The slots of N samples: sample n has those from offsets_N1[n] to offsets_N1[n + 1], field after field."""

    rows_S: Int64Array  # place of the slot's row: among the keys of `wide_keys`, or after `at` among other rows
    fields_S: Int64Array
    offsets_N1: Int64Array
    crossed_from_NF: Int64Array  # the first slot of each field that takes part in crosses
    num_crossed_NF: Int64Array
    weights_S: Float64Array | None = None  # by which all that a slot adds is multiplied; None: by 1

    def at(self, rows_K: Int64Array) -> "Slots":
        """Return the same slots for rows of which key k has number rows_K[k] (`inverse_K` of unique keys)."""
        return self._replace(rows_S=rows_K[self.rows_S])


def with_bias(schema: Schema, bins_ND: Int64Array, bias_NB: Int64Array | None = None) -> Int64Array:
    """Return the ids of bins and then of bias fields, (N, D + B). `bias_NB`: None stands for what is served."""
    if not schema.bias:
        return bins_ND
    if bias_NB is None:
        bias_NB = np.tile(np.array(schema.served_bias, np.int64), (len(bins_ND), 1))
    return np.concatenate([bins_ND, bias_NB], axis=1)


def bin_keys(schema: Schema, bins_ND: Int64Array) -> tuple[UInt16Array, Int64Array]:
    """Return the keys of the bins, and of the ids that `with_bias` has appended: features and ids (N * D), sample by
    sample. They follow those of `lookup_keys`.
    """
    numbers_D = np.array([*schema.dense_numbers, *schema.bias_numbers], np.uint16)
    return np.tile(numbers_D, len(bins_ND)), np.ascontiguousarray(bins_ND).reshape(-1)


def num_crossed(schema: Schema, features: Features) -> Int64Array:
    """Return how many slots of each sample and field take part in crosses, (N, F)."""
    return np.minimum(_lengths(schema, features), MAX_CROSSED)


def slots_of(schema: Schema, features: Features) -> Slots:
    """Return the slots; their rows are places among the keys of `lookup_keys`, followed by those of `bin_keys`."""
    num_samples, num_categorical = features.categorical_NC.shape
    num_binned, lengths_NF = len(schema.dense) + len(schema.bias), _lengths(schema, features)
    num_fields = lengths_NF.shape[1]
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
    starts_FN += list(start + samples_N * num_binned + np.arange(num_binned)[:, None])
    takes_last += [False] * num_binned
    starts_NF = np.stack(starts_FN, axis=1)

    ends_G = np.cumsum(lengths_NF.reshape(-1))  # of each sample's fields, one after the other
    offsets_NF = (ends_G - lengths_NF.reshape(-1)).reshape(lengths_NF.shape)
    num_slots = int(ends_G[-1]) if len(ends_G) else 0
    if num_slots == lengths_NF.size and (lengths_NF == 1).all():
        rows_S, fields_S = starts_NF.reshape(-1), np.tile(np.arange(num_fields), num_samples)
    else:
        shifts_G = (starts_NF - offsets_NF).reshape(-1)
        rows_S = np.arange(num_slots) + np.repeat(shifts_G, lengths_NF.reshape(-1))
        fields_S = np.repeat(np.tile(np.arange(num_fields), num_samples), lengths_NF.reshape(-1))
    num_crossed_NF = np.minimum(lengths_NF, MAX_CROSSED)
    skipped_NF = np.where(np.array(takes_last), lengths_NF - num_crossed_NF, 0)
    offsets_N1 = np.append(offsets_NF[:, 0], num_slots)
    weights_S = slot_weights(schema, features, fields_S)
    return Slots(rows_S, fields_S, offsets_N1, offsets_NF + skipped_NF, num_crossed_NF, weights_S)


def slot_weights(schema: Schema, features: Features, fields_S: Int64Array) -> Float64Array | None:
    """Return the weight of each slot, (S): that of a weighted list's id, otherwise 1. None: there are no such lists."""
    weights_S = None
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        if ragged.weights_M is not None and name not in schema.share:
            weights_S = np.ones(len(fields_S)) if weights_S is None else weights_S
            weights_S[fields_S == schema.owners.index(name)] = ragged.weights_M
    return weights_S


def _lengths(schema: Schema, features: Features) -> Int64Array:
    """Return how many slots each sample and field has, (N, F)."""
    num_fields = len(schema.owners) + len(schema.dense) + len(schema.bias)
    lengths_NF = np.ones((len(features), num_fields), np.int64)
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        if name not in schema.share:
            lengths_NF[:, schema.owners.index(name)] = np.diff(ragged.offsets)
    return lengths_NF


CROSS_SEED = np.uint64(0x4352_4F53_5345_5321)  # "CROSSES!"
MAX_CELLS = 1 << 22  # of the arrays that are made for a part of the samples


class CrossSlots(NamedTuple):
    """The crosses of N samples: sample n has those from offsets_N1[n] to offsets_N1[n + 1], pair after pair."""

    ids_C: Int64Array  # of their rows, whose feature number is keys.CROSSES
    pairs_C: Int64Array
    offsets_N1: Int64Array
    weights_C: Float64Array | None = None  # the products of their slots' weights; None: 1


def all_pairs(num_fields: int, num_bias: int = 0) -> Int64Array:
    """Return every pair of fields, int64 (P, 2), the lower first, in order; none of a bias field and another one.

    `num_bias`: of the fields the last ones.
    """
    pairs_P2 = np.stack(np.triu_indices(num_fields, 1), axis=1).astype(np.int64)
    is_bias_P2 = pairs_P2 >= num_fields - num_bias
    apart_P2: Int64Array = pairs_P2[is_bias_P2[:, 0] == is_bias_P2[:, 1]]
    return apart_P2


def pairs_to_try(numbers_F: Int64Array, at_most: int, num_bias: int = 0) -> Int64Array:
    """Return the pairs of fields that live at first, int64 (P, 2): all, or of too many those of the smallest hashes.

    The same ones whatever the order of the fields: the hash is of both feature numbers, the smaller one first.
    """
    pairs_P2 = all_pairs(len(numbers_F), num_bias)
    if len(pairs_P2) <= at_most:
        return pairs_P2
    numbers_P2 = np.sort(numbers_F[pairs_P2], axis=1)
    hashes_P = hash_keys(numbers_P2[:, 0].astype(np.uint16), numbers_P2[:, 1])
    return pairs_P2[np.sort(np.argsort(hashes_P, kind="stable")[:at_most])]


def row_hashes(numbers_U: Int64Array, ids_U: Int64Array, born_U: Float32Array) -> UInt64Array:
    """Return what the crosses of these rows are made of: a hash of feature number, id and `born`.

    An id whose row was forgotten or has expired is born again: it has new crosses.
    """
    hashes_U = hash_keys(numbers_U.astype(np.uint16), ids_U)
    hashes_U ^= born_U.astype(np.uint64) * GOLDEN_64
    return mix64_array(hashes_U)


def cross_ids(left_C: UInt64Array, right_C: UInt64Array) -> Int64Array:
    """Return the ids of crosses, from the hashes of two rows each: first the one of the lower field."""
    return mix64_array(mix64_array(left_C ^ CROSS_SEED) ^ right_C).view(np.int64)


def cross_slots(
    slots: Slots, pair_fields_P2: Int64Array, live_P: Indices, hashes_U: UInt64Array, born_U: Float32Array
) -> CrossSlots:
    """Return the crosses of samples that are scored: of live pairs, where both rows were used by a sample before.

    `live_P`: the numbers of the live pairs, ascending. `hashes_U`, `born_U`: of the rows that `slots` refers to.
    """
    num_samples = len(slots.offsets_N1) - 1
    left_P, right_P = pair_fields_P2[live_P, 0], pair_fields_P2[live_P, 1]
    longest = int(slots.num_crossed_NF.max(initial=0))
    if longest == 0 or len(live_P) == 0:
        none = np.zeros(0, np.int64)
        weights_C = None if slots.weights_S is None else np.zeros(0)
        return CrossSlots(none, none, np.zeros(num_samples + 1, np.int64), weights_C)
    places_E = np.arange(longest)
    part = max(1, MAX_CELLS // (len(live_P) * longest * longest))
    ids, pairs, counts, weights = [], [], [], []
    for start in range(0, num_samples, part):
        first_NF, num_NF = slots.crossed_from_NF[start : start + part], slots.num_crossed_NF[start : start + part]
        used_NFE = places_E < num_NF[:, :, None]
        slots_NFE = np.where(used_NFE, first_NF[:, :, None] + places_E, 0)
        rows_NFE = slots.rows_S[slots_NFE]
        used_NFE &= born_U[rows_NFE] != 0
        used_NPEE = used_NFE[:, left_P, :, None] & used_NFE[:, right_P, None, :]
        n_C, p_C, i_C, j_C = np.nonzero(used_NPEE)
        lefts_C = hashes_U[rows_NFE[n_C, left_P[p_C], i_C]]
        ids.append(cross_ids(lefts_C, hashes_U[rows_NFE[n_C, right_P[p_C], j_C]]))
        pairs.append(live_P[p_C].astype(np.int64))
        counts.append(np.bincount(n_C, minlength=len(first_NF)))
        if slots.weights_S is not None:
            weights_NFE = slots.weights_S[slots_NFE]
            weights.append(weights_NFE[n_C, left_P[p_C], i_C] * weights_NFE[n_C, right_P[p_C], j_C])
    offsets_N1 = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    weights_C = np.concatenate(weights) if weights else None
    return CrossSlots(np.concatenate(ids), np.concatenate(pairs), offsets_N1, weights_C)


def born_of_rows(wide_UW: Float32Array, num_labels: int) -> Float32Array:
    """Return the `born` of rows from their wide columns."""
    born_U: Float32Array = wide_UW[:, born_column(num_labels)]
    return born_U
