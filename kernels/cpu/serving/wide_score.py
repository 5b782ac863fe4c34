"""A view's wide score, compiled: the same bits as springtide_client.wide.score.score."""

# N samples, S slots, C crosses of all samples, U rows, D dimension, W columns of the wide part, L labels, F fields,
# T types of slots, B buckets, X numbers of a sample, G groups
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    INFORMATION,
    MAX_SEEN_BITS,
    NUM_BUCKETS,
    NUM_PARTS,
    PLAIN_WEIGHT,
    WEIGHT,
)
from springtide_client.array_types import Float32Array, Int64Array
from springtide_client.wide.fields import Float64Array
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows
from springtide_client.wide.slots import CrossSlots, Slots


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
