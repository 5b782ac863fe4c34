"""Crosses: a row for each pair of ids of different fields that came together, found by a hash of the two."""

# U rows, N samples, F fields, P pairs of fields, S slots, C crosses of all samples, E crossed slots of a field at most
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, Indices, Int64Array, UInt64Array
from springtide_client.keys import GOLDEN_64, mix64_array, mix_keys
from springtide_client.wide.layout import born_column
from springtide_client.wide.slots import Slots

CROSS_SEED = np.uint64(0x4352_4F53_5345_5321)  # "CROSSES!"
MAX_CELLS = 1 << 22  # of the arrays that are made for a part of the samples


class CrossSlots(NamedTuple):
    """The crosses of N samples: sample n has those from offsets_N1[n] to offsets_N1[n + 1], pair after pair."""

    ids_C: Int64Array  # of their rows, whose feature number is keys.CROSSES
    pairs_C: Int64Array
    offsets_N1: Int64Array


def all_pairs(num_fields: int) -> Int64Array:
    """Return every pair of fields, int64 (P, 2), the lower first, in order."""
    return np.stack(np.triu_indices(num_fields, 1), axis=1).astype(np.int64)


def pairs_to_try(numbers_F: Int64Array, at_most: int) -> Int64Array:
    """Return the pairs of fields that live at first, int64 (P, 2): all, or of too many those of the smallest hashes.

    The same ones whatever the order of the fields: the hash is of both feature numbers, the smaller one first.
    """
    pairs_P2 = all_pairs(len(numbers_F))
    if len(pairs_P2) <= at_most:
        return pairs_P2
    numbers_P2 = np.sort(numbers_F[pairs_P2], axis=1)
    hashes_P = mix_keys(numbers_P2[:, 0].astype(np.uint16), numbers_P2[:, 1])
    return pairs_P2[np.sort(np.argsort(hashes_P, kind="stable")[:at_most])]


def row_hashes(numbers_U: Int64Array, ids_U: Int64Array, born_U: Float32Array) -> UInt64Array:
    """Return what the crosses of these rows are made of: a hash of feature number, id and `born`.

    An id whose row was forgotten or has expired is born again: it has new crosses.
    """
    hashes_U = mix_keys(numbers_U.astype(np.uint16), ids_U)
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
        return CrossSlots(none, none, np.zeros(num_samples + 1, np.int64))
    places_E = np.arange(longest)
    part = max(1, MAX_CELLS // (len(live_P) * longest * longest))
    ids, pairs, counts = [], [], []
    for start in range(0, num_samples, part):
        first_NF, num_NF = slots.crossed_from_NF[start : start + part], slots.num_crossed_NF[start : start + part]
        used_NFE = places_E < num_NF[:, :, None]
        rows_NFE = slots.rows_S[np.where(used_NFE, first_NF[:, :, None] + places_E, 0)]
        used_NFE &= born_U[rows_NFE] != 0
        used_NPEE = used_NFE[:, left_P, :, None] & used_NFE[:, right_P, None, :]
        n_C, p_C, i_C, j_C = np.nonzero(used_NPEE)
        lefts_C = hashes_U[rows_NFE[n_C, left_P[p_C], i_C]]
        ids.append(cross_ids(lefts_C, hashes_U[rows_NFE[n_C, right_P[p_C], j_C]]))
        pairs.append(live_P[p_C].astype(np.int64))
        counts.append(np.bincount(n_C, minlength=len(first_NF)))
    offsets_N1 = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    return CrossSlots(np.concatenate(ids), np.concatenate(pairs), offsets_N1)


def born_of_rows(wide_UW: Float32Array, num_labels: int) -> Float32Array:
    """Return the `born` of rows from their wide columns."""
    born_U: Float32Array = wide_UW[:, born_column(num_labels)]
    return born_U
