"""A view's wide prediction, compiled: the same bits as springtide_client.wide.score.NUMPY_STEPS."""

# N samples, S slots, C crosses of all samples, U rows, K keys, D dense features (of a row: dimension), F fields,
# W columns of the wide part, L labels (of offsets: list features), T types of slots, B buckets, G groups,
# X numbers of a sample
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from springtide.kernels.cpu.hashing import GOLDEN, mix64, mix_key
from springtide.kernels.cpu.wide.prepare import crosses_of
from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    INFORMATION,
    MAX_SEEN_BITS,
    NUM_BUCKETS,
    NUM_PARTS,
    PLAIN_WEIGHT,
    WEIGHT,
)
from springtide_client.array_types import Float32Array, Int64Array, UInt16Array
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema
from springtide_client.wide.fields import Float64Array, signed_logs
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows, WideSteps
from springtide_client.wide.slots import MAX_CROSSED, CrossSlots, Slots

# what a field is made of, and in a field's line: its kind, its place among those, whether its last elements are crossed
CATEGORICAL, LIST, DENSE = 0, 1, 2
KIND, PLACE, TAKES_LAST = 0, 1, 2
ALL_CROSSES = 1 << 62


def compiled_numbers(dense_ND: Float32Array, statistics_3D: Float64Array) -> tuple[Float64Array, Int64Array]:
    """Return standardized numbers (N, X) and bins (N, D), as springtide_client.wide.score.numbers_and_bins does."""
    x_NX, bins_ND = _numbers(signed_logs(dense_ND), statistics_3D)
    return x_NX, bins_ND


class CompiledSlots:
    """Remembers the fields of the schema that it was called with last."""

    def __init__(self) -> None:
        self._known: tuple[Schema | None, Int64Array] = None, np.empty((0, 3), np.int64)

    def __call__(
        self,
        schema: Schema,
        features: Features,
        parameters: WideParameters,
        features_K: UInt16Array,
        ids_K: Int64Array,
        wide_KW: Float32Array,
    ) -> tuple[Slots, CrossSlots]:
        """Return slots and crosses, as springtide_client.wide.score.slots_and_crosses does."""
        known, fields_F3 = self._known
        if known is not schema:
            fields_F3 = fields_of(schema)
            self._known = schema, fields_F3
        num_samples, num_categorical = features.categorical_NC.shape
        if features.lists:
            offsets_LN1 = np.array([ragged.offsets for ragged in features.lists])
        else:
            offsets_LN1 = np.empty((0, num_samples + 1), np.int64)
        found = _slots_and_crosses(
            fields_F3,
            num_samples,
            num_categorical,
            len(schema.dense),
            offsets_LN1,
            parameters.pair_fields_P2,
            parameters.pair_is_live_P,
            features_K,
            ids_K,
            wide_KW,
        )
        return Slots(*found[:5]), CrossSlots(*found[5:])


def fields_of(schema: Schema) -> Int64Array:
    """Return a line for each field, in the order of springtide_client.wide.fields."""
    lines = [(CATEGORICAL, place, 0) for place, name in enumerate(schema.categorical) if name not in schema.share]
    lines += [
        (LIST, place, int(name in schema.sequence))
        for place, name in enumerate(schema.lists)
        if name not in schema.share
    ]
    lines += [(DENSE, place, 0) for place in range(len(schema.dense))]
    return np.array(lines, np.int64).reshape(-1, 3)


@njit(nogil=True, cache=True)
def _numbers(logs_ND: Any, statistics_3D: Any) -> Any:
    num_samples, num_dense = logs_ND.shape
    x_NX, bins_ND = np.zeros((num_samples, 2 * num_dense)), np.empty((num_samples, num_dense), np.int64)
    for d in range(num_dense):
        mean, count, scale = statistics_3D[0, d], statistics_3D[2, d], math.sqrt(statistics_3D[1, d] + 1e-4)
        for n in range(num_samples):
            value = logs_ND[n, d]
            if math.isnan(value):
                x_NX[n, 2 * d + 1] = 1.0
                bins_ND[n, d] = MISSING_ID
                continue
            x = 0.0
            if count > 0.0:
                x = min(max((value - mean) / scale, -5.0), 5.0)
            x_NX[n, 2 * d] = x
            bins_ND[n, d] = np.int64(math.floor(x * 2.0))
    return x_NX, bins_ND


@njit(nogil=True, cache=True)
def _slots_and_crosses(
    fields_F3: Any,
    num_samples: Any,
    num_categorical: Any,
    num_dense: Any,
    offsets_LN1: Any,
    pair_fields_P2: Any,
    pair_is_live_P: Any,
    features_K: Any,
    ids_K: Any,
    wide_KW: Any,
) -> Any:
    num_fields, num_lists = len(fields_F3), len(offsets_LN1)
    starts_L, end = np.empty(num_lists, np.int64), num_samples * num_categorical
    for place in range(num_lists):
        starts_L[place] = end
        end += offsets_LN1[place, num_samples]
    num_slots = 0
    for f in range(num_fields):
        is_list = fields_F3[f, KIND] == LIST
        num_slots += offsets_LN1[fields_F3[f, PLACE], num_samples] if is_list else num_samples
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
                first = starts_L[place] + offsets_LN1[place, n]
                length = offsets_LN1[place, n + 1] - offsets_LN1[place, n]
            crossed = min(length, MAX_CROSSED)
            num_crossed_NF[n, f] = crossed
            crossed_from_NF[n, f] = s + (length - crossed if fields_F3[f, TAKES_LAST] else 0)
            for k in range(first, first + length):
                rows_S[s], fields_S[s] = k, f
                s += 1
    offsets_N1[num_samples] = s

    num_keys, born_column = wide_KW.shape[0], wide_KW.shape[1] - 1
    hashes_K, usable_from_K = np.empty(num_keys, np.uint64), np.empty(num_keys, np.int64)
    for k in range(num_keys):
        born = wide_KW[k, born_column]
        hashes_K[k] = mix64(mix_key(features_K[k], ids_K[k]) ^ (np.uint64(born) * GOLDEN))
        usable_from_K[k] = -1 if born != 0 else num_samples
    live_P = np.flatnonzero(pair_is_live_P)
    ids_C, pairs_C, cross_offsets_N1, _ = crosses_of(
        rows_S,
        crossed_from_NF,
        num_crossed_NF,
        pair_fields_P2,
        live_P,
        usable_from_K,
        hashes_K,
        0,
        num_samples,
        ALL_CROSSES,
    )
    return rows_S, fields_S, offsets_N1, crossed_from_NF, num_crossed_NF, ids_C, pairs_C, cross_offsets_N1


class _Samples(NamedTuple):
    """The samples of a call and their rows."""

    rows_S: Int64Array
    fields_S: Int64Array
    offsets_N1: Int64Array
    values_UD: Float32Array
    wide_UW: Float32Array
    counts_U: Int64Array
    pairs_C: Int64Array
    cross_offsets_N1: Int64Array
    cross_rows_C2L: Float32Array
    x_NX: Float64Array
    net_NL: Float64Array


class _Weights(NamedTuple):
    """The arrays of WideParameters that a score reads."""

    seen_statistics_3F: Float64Array
    base_L: Float64Array
    bias_L: Float64Array
    group_weights_LG: Float64Array
    gates_LTB: Float64Array
    number_weights_LX: Float64Array
    seen_weights_LF2: Float64Array
    plain_bias_L: Float64Array
    plain_group_weights_L2: Float64Array
    plain_number_weights_LX: Float64Array
    mixture_L: Float64Array


def compiled_score(
    parameters: WideParameters,
    slots: Slots,
    rows: WideRows,
    crosses: CrossSlots,
    cross_rows_C2L: Float32Array,
    x_NX: Float64Array,
    net_NL: npt.NDArray[np.floating],
) -> Float64Array:
    """Return logits, float64 (N, L); arguments as of springtide_client.wide.score.score."""
    logits_NL = np.empty((len(slots.offsets_N1) - 1, parameters.num_labels))
    samples = _Samples(
        *slots[:3],
        rows.values_UD,
        rows.wide_UW,
        rows.counts_U,
        crosses.pairs_C,
        crosses.offsets_N1,
        cross_rows_C2L,
        x_NX,
        net_NL.astype(np.float64),
    )
    weights = _Weights(*(getattr(parameters, name) for name in _Weights._fields))
    # one layout of each array: the kernel is compiled once
    contiguous = np.ascontiguousarray
    samples, weights = _Samples(*map(contiguous, samples)), _Weights(*map(contiguous, weights))
    _score(samples, weights, parameters.factorization_scale, logits_NL)
    return logits_NL


@njit(nogil=True, cache=True)
def _bucket_of(information: float) -> int:
    x, bucket = information * 4.0, 0
    while x >= 1.0 and bucket < NUM_BUCKETS - 1:
        x *= 0.5
        bucket += 1
    return bucket


@njit(nogil=True, cache=True)
def _bits_of_count(count: int) -> int:
    bits = 0
    while count > 0 and bits < MAX_SEEN_BITS:
        count >>= 1
        bits += 1
    return bits


@njit(nogil=True, cache=True)
def _score(samples: _Samples, weights: _Weights, factorization_scale: float, logits_NL: Any) -> None:
    rows_S, fields_S, offsets_N1 = samples.rows_S, samples.fields_S, samples.offsets_N1
    values_UD, wide_UW, counts_U = samples.values_UD, samples.wide_UW, samples.counts_U
    pairs_C, cross_offsets_N1, cross_rows_C2L = samples.pairs_C, samples.cross_offsets_N1, samples.cross_rows_C2L
    x_NX, seen_statistics_3F, seen_weights_LF2 = samples.x_NX, weights.seen_statistics_3F, weights.seen_weights_LF2
    base_L, gates_LTB, group_weights_LG = weights.base_L, weights.gates_LTB, weights.group_weights_LG
    number_weights_LX, plain_number_weights_LX = weights.number_weights_LX, weights.plain_number_weights_LX
    plain_group_weights_L2 = weights.plain_group_weights_L2
    num_samples, dim, num_fields = len(offsets_N1) - 1, values_UD.shape[1], seen_statistics_3F.shape[1]
    sums_D, squares_D, parts_G = np.empty(dim), np.empty(dim), np.empty(NUM_PARTS)
    for n in range(num_samples):
        first, end = offsets_N1[n], offsets_N1[n + 1]
        sums_D[:], squares_D[:] = 0.0, 0.0
        for s in range(first, end):
            for d in range(dim):
                v = np.float64(values_UD[rows_S[s], d])
                sums_D[d] += v
                squares_D[d] += v * v
        pairs = 0.0
        for d in range(dim):
            pairs += sums_D[d] * sums_D[d] - squares_D[d]
        for label in range(len(base_L)):
            at, gates_TB = COLUMNS * label, gates_LTB[label]
            summed, seen, plain, crossed, numbers, plain_numbers = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for s in range(first, end):
                u, f = rows_S[s], fields_S[s]
                bits = _bits_of_count(counts_U[u])
                standard = (bits - seen_statistics_3F[0, f]) / math.sqrt(seen_statistics_3F[1, f] + 0.01)
                part = seen_weights_LF2[label, f, 0] * min(max(standard, -3.0), 3.0)
                if bits == 0:
                    part += seen_weights_LF2[label, f, 1]
                seen += part
                bucket = _bucket_of(np.float64(wide_UW[u, at + INFORMATION]))
                summed += gates_TB[f, bucket] * np.float64(wide_UW[u, at + WEIGHT])
                plain += np.float64(wide_UW[u, at + PLAIN_WEIGHT])
            for c in range(cross_offsets_N1[n], cross_offsets_N1[n + 1]):
                bucket = _bucket_of(np.float64(cross_rows_C2L[c, 2 * label + 1]))
                crossed += gates_TB[num_fields + pairs_C[c], bucket] * np.float64(cross_rows_C2L[c, 2 * label])
            for k in range(x_NX.shape[1]):
                numbers += x_NX[n, k] * number_weights_LX[label, k]
                plain_numbers += x_NX[n, k] * plain_number_weights_LX[label, k]
            parts_G[0], parts_G[1], parts_G[2] = summed, crossed, numbers
            parts_G[3], parts_G[4], parts_G[5] = 0.5 * pairs * factorization_scale, samples.net_NL[n, label], seen
            logit = base_L[label] + weights.bias_L[label]
            for g in range(NUM_PARTS):
                logit += group_weights_LG[label, g] * parts_G[g]
            other = base_L[label] + weights.plain_bias_L[label]
            other += plain_group_weights_L2[label, 0] * plain
            other += plain_group_weights_L2[label, 1] * plain_numbers
            share = weights.mixture_L[label]
            logits_NL[n, label] = share * logit + (1.0 - share) * other


def compiled_steps() -> WideSteps:
    """Return steps for the views of one follower."""
    return WideSteps(compiled_numbers, CompiledSlots(), compiled_score)
