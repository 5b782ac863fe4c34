"""A view's wide score, compiled: the same bits as springtide_client.wide.score.score."""

# N samples, S slots, C crosses of all samples, U rows, D dimension, W columns of the wide part, L labels, F fields,
# T types of slots, B buckets, X numbers of a sample, G groups
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    INFORMATION,
    NUM_PARTS,
    PLAIN_WEIGHT,
    WEIGHT,
    bits_of_count,
    bucket_of,
)
from springtide_client.array_types import Float32Array
from springtide_client.wide.bins import Float64Array
from springtide_client.wide.crosses import CrossSlots
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows
from springtide_client.wide.slots import Slots


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
    # one layout of each array: the kernel is compiled once
    arrays = [
        np.ascontiguousarray(array)
        for array in (
            slots.rows_S,
            slots.fields_S,
            slots.offsets_N1,
            rows.values_UD,
            rows.wide_UW,
            rows.counts_U,
            crosses.pairs_C,
            crosses.offsets_N1,
            cross_rows_C2L,
            x_NX,
            net_NL.astype(np.float64),
            parameters.seen_statistics_3F,
            parameters.base_L,
            parameters.bias_L,
            parameters.group_weights_LG,
            parameters.gates_LTB,
            parameters.number_weights_LX,
            parameters.seen_weights_LF2,
            parameters.plain_bias_L,
            parameters.plain_group_weights_L2,
            parameters.plain_number_weights_LX,
            parameters.mixture_L,
        )
    ]
    _score(*arrays, parameters.factorization_scale, logits_NL)
    return logits_NL


@njit(nogil=True, cache=True)
def _score(
    rows_S: Any,
    fields_S: Any,
    offsets_N1: Any,
    values_UD: Any,
    wide_UW: Any,
    counts_U: Any,
    pairs_C: Any,
    cross_offsets_N1: Any,
    cross_rows_C2L: Any,
    x_NX: Any,
    net_NL: Any,
    seen_statistics_3F: Any,
    base_L: Any,
    bias_L: Any,
    group_weights_LG: Any,
    gates_LTB: Any,
    number_weights_LX: Any,
    seen_weights_LF2: Any,
    plain_bias_L: Any,
    plain_group_weights_L2: Any,
    plain_number_weights_LX: Any,
    mixture_L: Any,
    factorization_scale: Any,
    logits_NL: Any,
) -> None:
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
                bits = bits_of_count(counts_U[u])
                standard = (bits - seen_statistics_3F[0, f]) / math.sqrt(seen_statistics_3F[1, f] + 0.01)
                part = seen_weights_LF2[label, f, 0] * min(max(standard, -3.0), 3.0)
                if bits == 0:
                    part += seen_weights_LF2[label, f, 1]
                seen += part
                bucket = bucket_of(np.float64(wide_UW[u, at + INFORMATION]))
                summed += gates_TB[f, bucket] * np.float64(wide_UW[u, at + WEIGHT])
                plain += np.float64(wide_UW[u, at + PLAIN_WEIGHT])
            for c in range(cross_offsets_N1[n], cross_offsets_N1[n + 1]):
                bucket = bucket_of(np.float64(cross_rows_C2L[c, 2 * label + 1]))
                crossed += gates_TB[num_fields + pairs_C[c], bucket] * np.float64(cross_rows_C2L[c, 2 * label])
            for k in range(x_NX.shape[1]):
                numbers += x_NX[n, k] * number_weights_LX[label, k]
                plain_numbers += x_NX[n, k] * plain_number_weights_LX[label, k]
            parts_G[0], parts_G[1], parts_G[2] = summed, crossed, numbers
            parts_G[3], parts_G[4], parts_G[5] = 0.5 * pairs * factorization_scale, net_NL[n, label], seen
            logit = base_L[label] + bias_L[label]
            for g in range(NUM_PARTS):
                logit += group_weights_LG[label, g] * parts_G[g]
            other = base_L[label] + plain_bias_L[label]
            other += plain_group_weights_L2[label, 0] * plain
            other += plain_group_weights_L2[label, 1] * plain_numbers
            share = mixture_L[label]
            logits_NL[n, label] = share * logit + (1.0 - share) * other
