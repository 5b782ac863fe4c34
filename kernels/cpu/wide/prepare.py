"""Prepares the pass, in the order of the samples: standardized numbers, slots, first uses of rows, crosses."""

# axes: see kernels/cpu/wide/arrays.py; P of offsets: list features
import math
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import GOLDEN, hash_key, mix64
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.njit import njit
from springtide_client.array_types import Int64Array
from springtide_client.features import Features
from springtide_client.schema import Schema
from springtide_client.wide.layout import BORN_PERIOD
from springtide_client.wide.slots import MAX_CROSSED

CROSS_SEED = np.uint64(0x4352_4F53_5345_5321)
MAX_COUNT = 1e6  # values that statistics remember
# what a field is made of, and in a field's line: its kind, its place among those, whether its last elements are crossed
CATEGORICAL, LIST, DENSE = 0, 1, 2
KIND, PLACE, TAKES_LAST = 0, 1, 2


def fields_of(schema: Schema) -> Int64Array:
    """Return a line for each field, (F, 3), in the order of springtide_client.wide.fields."""
    lines = [(CATEGORICAL, place, 0) for place, name in enumerate(schema.categorical) if name not in schema.share]
    lines += [
        (LIST, place, int(name in schema.sequence))
        for place, name in enumerate(schema.lists)
        if name not in schema.share
    ]
    lines += [(DENSE, place, 0) for place in range(len(schema.dense) + len(schema.bias))]
    return np.array(lines, np.int64).reshape(-1, 3)


def list_offsets(features: Features) -> Int64Array:
    """Return the offsets of every list feature, (P, N + 1), as `sample_slots` takes them."""
    if features.lists:
        return np.array([ragged.offsets for ragged in features.lists], np.int64)
    return np.empty((0, len(features) + 1), np.int64)


@njit(nogil=True, cache=True)
def sample_slots(fields_F3: Any, num_categorical: Any, num_dense: Any, offsets_PN1: Any) -> Any:
    """Return what springtide_client.wide.slots.slots_of does, as a tuple."""
    num_fields, num_lists, num_samples = len(fields_F3), len(offsets_PN1), offsets_PN1.shape[1] - 1
    starts_P, end = np.empty(num_lists, np.int64), num_samples * num_categorical
    for place in range(num_lists):
        starts_P[place] = end
        end += offsets_PN1[place, num_samples]
    num_slots = 0
    for f in range(num_fields):
        is_list = fields_F3[f, KIND] == LIST
        num_slots += offsets_PN1[fields_F3[f, PLACE], num_samples] if is_list else num_samples
    rows_S, fields_S = np.empty(num_slots, np.int64), np.empty(num_slots, np.int64)
    offsets_N1 = np.empty(num_samples + 1, np.int64)
    crossed_from_NF = np.empty((num_samples, num_fields), np.int64)
    num_crossed_NF = np.empty((num_samples, num_fields), np.int64)
    s = 0
    for n in range(num_samples):
        offsets_N1[n] = s
        for f in range(num_fields):
            kind, place = fields_F3[f, KIND], fields_F3[f, PLACE]
            length = 1
            if kind == CATEGORICAL:
                first = n * num_categorical + place
            elif kind == DENSE:
                first = end + n * num_dense + place
            else:
                first = starts_P[place] + offsets_PN1[place, n]
                length = offsets_PN1[place, n + 1] - offsets_PN1[place, n]
            crossed = min(length, MAX_CROSSED)
            num_crossed_NF[n, f] = crossed
            crossed_from_NF[n, f] = s + (length - crossed if fields_F3[f, TAKES_LAST] else 0)
            for k in range(first, first + length):
                rows_S[s], fields_S[s] = k, f
                s += 1
    offsets_N1[num_samples] = s
    return rows_S, fields_S, offsets_N1, crossed_from_NF, num_crossed_NF


@njit(nogil=True, cache=True)
def row_hash(feature: Any, id_: Any, born: Any) -> Any:
    """What springtide_client.wide.slots.row_hashes gives for one row."""
    return mix64(hash_key(feature, id_) ^ (np.uint64(born) * GOLDEN))


@njit(nogil=True, cache=True)
def prepare_batch(
    fields_F3: Any,
    num_categorical: Any,
    num_dense: Any,
    offsets_PN1: Any,
    inverse_K: Any,
    features_U: Any,
    ids_U: Any,
    states_US: Any,
    samples_before: Any,
    born_together: Any,
    num_bias: Any,
) -> Any:
    """Return the slots of a batch as `sample_slots` does, at its unique keys, and of each row the parts of crosses.

    Those are the first sample that finds the row used before, and its hash. Then how many crosses each sample had if
    all pairs lived. A row's last state, `born`, is written at its first use, after `samples_before` samples and those
    of the batch; `born_together`: as if all first uses were the first sample's.
    """
    rows_S, fields_S, offsets_N1, crossed_from_NF, num_crossed_NF = sample_slots(
        fields_F3, num_categorical, num_dense, offsets_PN1
    )
    num_samples, num_rows, born_at = len(offsets_N1) - 1, len(ids_U), states_US.shape[1] - 1
    usable_from_U, hashes_U = np.empty(num_rows, np.int64), np.empty(num_rows, np.uint64)
    for u in range(num_rows):
        usable_from_U[u] = num_samples + 1
    for n in range(num_samples):
        for s in range(offsets_N1[n], offsets_N1[n + 1]):
            row = np.uint64(inverse_K[np.uint64(rows_S[s])])
            rows_S[s], usable_from_U[row] = row, min(usable_from_U[row], n + 1)
    for u in range(num_rows):
        born = states_US[u, born_at]
        if born > 0:
            usable_from_U[u] = -1
        elif born == 0 and usable_from_U[u] <= num_samples:
            before = samples_before if born_together else samples_before + usable_from_U[u] - 1
            born = np.float32(1 + before % BORN_PERIOD)
            states_US[u, born_at] = born
        hashes_U[u] = row_hash(features_U[u], ids_U[u], born)
    potential_N = potential_crosses(num_crossed_NF, num_bias)
    return (
        (rows_S, fields_S, offsets_N1, crossed_from_NF, num_crossed_NF),
        usable_from_U,
        hashes_U,
        potential_N,
    )


@njit(nogil=True, cache=True)
def running_numbers(logs_ND: Any, statistics_3D: Any) -> Any:
    """Return numbers (N, X) as springtide_client.wide.fields.standardize does, by the statistics before each sample.

    `statistics_3D` is brought up to date.
    """
    num_samples, num_dense = logs_ND.shape
    x_NX = np.zeros((num_samples, 2 * num_dense))
    for n in range(num_samples):
        for d in range(num_dense):
            value = logs_ND[n, d]
            if math.isnan(value):
                x_NX[n, 2 * d + 1] = 1.0
                continue
            mean, variance, count = statistics_3D[0, d], statistics_3D[1, d], statistics_3D[2, d]
            if count > 0.0:
                x_NX[n, 2 * d] = min(max((value - mean) / math.sqrt(variance + 1e-4), -5.0), 5.0)
            count = min(count + 1.0, MAX_COUNT)
            change = value - mean
            mean += change / count
            if count > 1.0:
                variance += (change * (value - mean) - variance) / count
            statistics_3D[0, d], statistics_3D[1, d], statistics_3D[2, d] = mean, variance, count
    return x_NX


@njit(nogil=True, cache=True)
def potential_crosses(num_crossed_NF: Any, num_bias: Any) -> Any:
    """Return how many crosses each sample had if all pairs lived, int64 (N). The last fields, of one slot each, are
    crossed among themselves alone.
    """
    potential_N = np.zeros(len(num_crossed_NF), np.int64)
    for n in range(len(num_crossed_NF)):
        total, squares = 0, 0
        for f in range(num_crossed_NF.shape[1]):
            total += num_crossed_NF[n, f]
            squares += num_crossed_NF[n, f] * num_crossed_NF[n, f]
        potential_N[n] = (total * total - squares) // 2 - (total - num_bias) * num_bias
    return potential_N


@njit(nogil=True, cache=True)
def crosses_of(
    rows_S: Any,
    crossed_from_NF: Any,
    num_crossed_NF: Any,
    pair_fields_P2: Any,
    pair_is_live_P: Any,
    usable_from_U: Any,
    hashes_U: Any,
    start: Any,
    stop: Any,
    most: Any,
) -> Any:
    """Return ids, pairs and offsets of the crosses of samples start to the returned one, at most `stop`.

    A row takes part from sample usable_from_U on. It ends early before the sample that would make more than `most`
    crosses, but not before the first.
    """
    live_P = np.flatnonzero(pair_is_live_P)
    num_fields, num_live, width = num_crossed_NF.shape[1], len(live_P), np.uint64(4)
    num_allocated = min((stop - start) * num_live, most) + num_live
    ids_C, pairs_C = np.empty(num_allocated, np.int64), np.empty(num_allocated, np.int64)
    offsets_R1, num = np.zeros(stop - start + 1, np.int64), 0
    lefts_P, rights_P = np.empty(num_live, np.uint64), np.empty(num_live, np.uint64)
    for k in range(num_live):
        lefts_P[k], rights_P[k] = pair_fields_P2[live_P[k], 0], pair_fields_P2[live_P[k], 1]
    # what a sample needs of a row is in one cache line: its hash on the left, on the right, the first sample
    rows_U4 = np.empty(4 * len(hashes_U), np.uint64)  # the fourth number is not used
    for u in range(len(hashes_U)):
        rows_U4[4 * u] = mix64(hashes_U[u] ^ CROSS_SEED)
        rows_U4[4 * u + 1], rows_U4[4 * u + 2] = hashes_U[u], np.uint64(max(usable_from_U[u], 0))
    lefts_F, rights_F = np.empty(num_fields, np.uint64), np.empty(num_fields, np.uint64)
    usable_F = np.empty(num_fields, np.int64)
    for n in range(start, stop):
        before, longest = num, 1
        for f in range(num_fields):
            longest = max(longest, num_crossed_NF[n, f])
        if num + num_live * longest * longest > num_allocated:
            num_allocated = 2 * num + num_live * longest * longest
            ids_C, pairs_C = _longer(ids_C, num, num_allocated), _longer(pairs_C, num, num_allocated)
        if longest > 1:
            num = _crosses_of_lists(
                rows_S, crossed_from_NF, num_crossed_NF, pair_fields_P2, live_P, rows_U4, n, ids_C, pairs_C, num
            )
        else:
            if n + 1 < stop:
                for f in range(num_fields):
                    if num_crossed_NF[n + 1, f]:
                        prefetch(rows_U4, np.uint64(rows_S[crossed_from_NF[n + 1, f]]) * width)
            for f in range(num_fields):
                usable_F[f] = 0
                if num_crossed_NF[n, f]:
                    at = np.uint64(rows_S[crossed_from_NF[n, f]]) * width
                    lefts_F[f], rights_F[f] = rows_U4[at], rows_U4[at + np.uint64(1)]
                    usable_F[f] = rows_U4[at + np.uint64(2)] <= np.uint64(n)
            for k in range(num_live):  # written where there is none too: the next one overwrites it
                i, j = lefts_P[k], rights_P[k]
                ids_C[num], pairs_C[num] = np.int64(mix64(lefts_F[i] ^ rights_F[j])), live_P[k]
                num += usable_F[i] & usable_F[j]
        if num > most and n > start:
            return ids_C[:before], pairs_C[:before], offsets_R1[: n - start + 1], n
        offsets_R1[n - start + 1] = num
    return ids_C[:num], pairs_C[:num], offsets_R1, stop


@njit(nogil=True, cache=True)
def repeated(values_N: Any, offsets_R1: Any, start: Any) -> Any:
    """Return for each cross of samples from `start` on, (C), the number of its sample."""
    values_C = np.empty(offsets_R1[-1], values_N.dtype)
    for r in range(len(offsets_R1) - 1):
        for c in range(offsets_R1[r], offsets_R1[r + 1]):
            values_C[c] = values_N[start + r]
    return values_C


@njit(nogil=True, cache=True)
def _crosses_of_lists(
    rows_S: Any,
    crossed_from_NF: Any,
    num_crossed_NF: Any,
    pair_fields_P2: Any,
    live_P: Any,
    rows_U4: Any,
    n: Any,
    ids_C: Any,
    pairs_C: Any,
    num: Any,
) -> Any:
    """Write the crosses of a sample with several ids in a field from place `num` on; return the place after them."""
    for p in live_P:
        i, j = pair_fields_P2[p, 0], pair_fields_P2[p, 1]
        i_from, j_from, num_j = crossed_from_NF[n, i], crossed_from_NF[n, j], num_crossed_NF[n, j]
        for s in range(i_from, i_from + num_crossed_NF[n, i]):
            left = rows_S[s]
            if rows_U4[4 * left + 2] > np.uint64(n):
                continue
            for t in range(j_from, j_from + num_j):
                right = rows_S[t]
                if rows_U4[4 * right + 2] <= np.uint64(n):
                    ids_C[num], pairs_C[num] = np.int64(mix64(rows_U4[4 * left] ^ rows_U4[4 * right + 1])), p
                    num += 1
    return num


@njit(nogil=True, cache=True)
def cross_weights(
    weights_S: Any,
    rows_S: Any,
    crossed_from_NF: Any,
    num_crossed_NF: Any,
    pair_fields_P2: Any,
    pair_is_live_P: Any,
    usable_from_U: Any,
    start: Any,
    num_crosses: Any,
) -> Any:
    """Return the products of the weights of each cross's two slots, float64, for what `crosses_of` has returned."""
    weights_C, live_P, c, n = np.empty(num_crosses), np.flatnonzero(pair_is_live_P), 0, start
    while c < num_crosses:
        for p in live_P:
            i, j = pair_fields_P2[p, 0], pair_fields_P2[p, 1]
            i_from, j_from = crossed_from_NF[n, i], crossed_from_NF[n, j]
            for s in range(i_from, i_from + num_crossed_NF[n, i]):
                if usable_from_U[rows_S[s]] > n:
                    continue
                for t in range(j_from, j_from + num_crossed_NF[n, j]):
                    if usable_from_U[rows_S[t]] <= n:
                        weights_C[c] = weights_S[s] * weights_S[t]
                        c += 1
        n += 1
    return weights_C


@njit(nogil=True, cache=True)
def _longer(array_C: Any, num: Any, num_allocated: Any) -> Any:
    longer_C = np.empty(num_allocated, np.int64)
    longer_C[:num] = array_C[:num]
    return longer_C
