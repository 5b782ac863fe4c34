"""The reference of the wide part's score, in plain numpy: equal bit by bit to the one that the trainer computes.

Sums are float64 and run over slots in their order. Logarithms and exponentials are not computed here: the arrays of a
version hold them.
"""

# N samples, S slots, C crosses of all samples, U rows, D dimension or dense features, X numbers of a sample, K keys,
# W columns of the wide part, L labels, G groups
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Float32Array, Int64Array, UInt16Array
from springtide_client.features import Features
from springtide_client.schema import Schema
from springtide_client.wide.fields import Float64Array, bin_ids, signed_logs, standardize
from springtide_client.wide.layout import COLUMNS_OF_A_LABEL, INFORMATION, PLAIN_WEIGHT, WEIGHT, buckets_of
from springtide_client.wide.parameters import NUM_GROUPS, WideParameters
from springtide_client.wide.slots import CrossSlots, Slots, born_of_rows, cross_slots, row_hashes, slots_of

WideScore = Callable[
    ["WideParameters", "Slots", "WideRows", "CrossSlots", Float32Array, Float64Array, npt.NDArray[np.floating]],
    Float64Array,
]
MAX_SEEN_BITS = 15
MAX_SEEN_DEVIATIONS, SEEN_VARIANCE_FLOOR = 3.0, 0.01


@dataclass(frozen=True, eq=False)
class WideRows:
    """The rows that slots refer to. A key without a row: its initial values, the other columns 0."""

    values_UD: Float32Array
    wide_UW: Float32Array  # layout.wide_width numbers
    counts_U: Int64Array  # how often the row was seen


def score(
    parameters: WideParameters,
    slots: Slots,
    rows: WideRows,
    crosses: CrossSlots,
    cross_rows_C2L: Float32Array,
    x_NX: Float64Array,
    net_NL: npt.NDArray[np.floating],
) -> Float64Array:
    """Return logits, float64 (N, L).

    `cross_rows_C2L`: of each cross its weight and its information for label 0, then for label 1, ...; zeros without a
    row. `x_NX`: bins.standardize. `net_NL`: the deep net's logits, the offset.
    """
    num_samples, num_labels = len(slots.offsets_N1) - 1, parameters.num_labels
    factorized_N = _factorized(slots, rows.values_UD, int(parameters.num_bias_1[0])) * parameters.factorization_scale
    standard_S, never_S = _seen(parameters, slots, rows.counts_U)
    standard_S = weighed(standard_S, slots.weights_S)
    wide_SW, fields_S = rows.wide_UW[slots.rows_S], slots.fields_S
    num_fields = len(parameters.numbers_F)
    logits_NL = np.empty((num_samples, num_labels))
    for label in range(num_labels):
        first = COLUMNS_OF_A_LABEL * label
        gates_TB = parameters.gates_LTB[label]
        groups_GN = np.empty((NUM_GROUPS, num_samples))
        gates_S = gates_TB[fields_S, buckets_of(wide_SW[:, first + INFORMATION])]
        groups_GN[0] = ordered_sums(weighed(gates_S * wide_SW[:, first + WEIGHT], slots.weights_S), slots.offsets_N1)
        weights_C, information_C = cross_rows_C2L[:, 2 * label], cross_rows_C2L[:, 2 * label + 1]
        gates_C = gates_TB[num_fields + crosses.pairs_C, buckets_of(information_C)]
        groups_GN[1] = ordered_sums(weighed(gates_C * weights_C, crosses.weights_C), crosses.offsets_N1)
        groups_GN[2] = _last_of_running_sums(x_NX * parameters.number_weights_LX[label])
        groups_GN[3] = factorized_N
        groups_GN[4] = net_NL[:, label]
        seen_F2 = parameters.seen_weights_LF2[label]
        parts_S = seen_F2[fields_S, 0] * standard_S + np.where(
            never_S, weighed(seen_F2[fields_S, 1], slots.weights_S), 0.0
        )
        groups_GN[5] = ordered_sums(parts_S, slots.offsets_N1)
        logits_N = np.full(num_samples, parameters.base_L[label] + parameters.bias_L[label])
        for weight, group_N in zip(parameters.group_weights_LG[label], groups_GN, strict=True):
            logits_N += weight * group_N
        plain_N = np.full(num_samples, parameters.base_L[label] + parameters.plain_bias_L[label])
        plain_weights_2 = parameters.plain_group_weights_L2[label]
        plain_S = weighed(wide_SW[:, first + PLAIN_WEIGHT].astype(np.float64), slots.weights_S)
        plain_N += plain_weights_2[0] * ordered_sums(plain_S, slots.offsets_N1)
        plain_N += plain_weights_2[1] * _last_of_running_sums(x_NX * parameters.plain_number_weights_LX[label])
        share = parameters.mixture_L[label]
        logits_NL[:, label] = share * logits_N + (1.0 - share) * plain_N
    return logits_NL


def weighed(parts_S: Float64Array, weights_S: Float64Array | None) -> Float64Array:
    """Return what slots, or crosses, add, times their weights; None: as it is."""
    return parts_S if weights_S is None else parts_S * weights_S


def bit_lengths(counts: Int64Array) -> Int64Array:
    """Return how many bits the counts have, at most MAX_SEEN_BITS."""
    return np.minimum(np.frexp(counts.astype(np.float64))[1], MAX_SEEN_BITS).astype(np.int64)


def ordered_sums(values_S: Float64Array, offsets_N1: Int64Array) -> Float64Array:
    """Return the sum of each sample's values, added one after the other."""
    lengths_N = np.diff(offsets_N1)
    longest = int(lengths_N.max(initial=0))
    if len(values_S) == len(lengths_N) * longest:
        return _last_of_running_sums(values_S.reshape(len(lengths_N), longest))
    padded = np.zeros((len(lengths_N), longest))
    padded[np.arange(longest) < lengths_N[:, None]] = values_S
    return _last_of_running_sums(padded)


def _last_of_running_sums(values: Float64Array) -> Float64Array:
    """Return the sums over the second axis; np.sum would add in an order of its own."""
    if values.shape[1] == 0:
        return np.zeros((values.shape[0], *values.shape[2:]))
    sums: Float64Array = np.cumsum(values, axis=1)[:, -1]
    return sums


def _factorized(slots: Slots, values_UD: Float32Array, num_bias: int) -> Float64Array:
    """Return the sum of the dot products of all pairs of a sample's vectors, (N), without its last slots: of bias."""
    num_samples = len(slots.offsets_N1) - 1
    lengths_N = np.diff(slots.offsets_N1) - num_bias
    longest, dim = int(lengths_N.max(initial=0)), values_UD.shape[1]
    sums_ND, squares_ND = np.zeros((num_samples, dim)), np.zeros((num_samples, dim))
    for place in range(longest):  # one slot after the other; an addition of zero changes nothing
        has_N = place < lengths_N
        slots_N = np.where(has_N, slots.offsets_N1[:-1] + place, 0)
        vectors_ND = values_UD[slots.rows_S[slots_N]].astype(np.float64)
        if slots.weights_S is not None:
            vectors_ND *= slots.weights_S[slots_N, None]
        vectors_ND = np.where(has_N[:, None], vectors_ND, 0.0)
        sums_ND += vectors_ND
        squares_ND += vectors_ND * vectors_ND
    return 0.5 * _last_of_running_sums(sums_ND * sums_ND - squares_ND)


def _seen(parameters: WideParameters, slots: Slots, counts_U: Int64Array) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """Return by slot how often its id was seen, standardized, and whether it never was."""
    bits_S = bit_lengths(counts_U[slots.rows_S])
    mean_F, variance_F, _ = parameters.seen_statistics_3F
    scale_F = np.sqrt(variance_F + SEEN_VARIANCE_FLOOR)
    standard_S = (bits_S - mean_F[slots.fields_S]) / scale_F[slots.fields_S]
    return np.minimum(np.maximum(standard_S, -MAX_SEEN_DEVIATIONS), MAX_SEEN_DEVIATIONS), bits_S == 0


# from dense features and number_statistics_3D: the numbers (N, X), and the id of each bin (N, D)
NumbersStep = Callable[[Float32Array, Float64Array], tuple[Float64Array, Int64Array]]
# from the keys of ids and bins that samples have, and the wide part's columns of their rows
SlotsStep = Callable[
    [Schema, Features, WideParameters, UInt16Array, Int64Array, Float32Array], tuple[Slots, CrossSlots]
]


@dataclass(frozen=True)
class WideSteps:
    """The parts of a wide prediction that servers compile, one after the other; between them rows are looked up.

    The reference of each is plain numpy.
    """

    numbers: NumbersStep
    slots: SlotsStep
    score: WideScore


def numbers_and_bins(dense_ND: Float32Array, statistics_3D: Float64Array) -> tuple[Float64Array, Int64Array]:
    """Return standardized numbers and bins."""
    x_NX = standardize(signed_logs(dense_ND), statistics_3D)
    return x_NX, bin_ids(x_NX)


def slots_and_crosses(
    schema: Schema,
    features: Features,
    parameters: WideParameters,
    features_K: UInt16Array,
    ids_K: Int64Array,
    wide_KW: Float32Array,
) -> tuple[Slots, CrossSlots]:
    """Return the slots of samples, and the crosses of live pairs."""
    slots, born_K = slots_of(schema, features), born_of_rows(wide_KW, parameters.num_labels)
    hashes_K = row_hashes(features_K.astype(np.int64), ids_K, born_K)
    return slots, cross_slots(slots, parameters.pair_fields_P2, parameters.live_pairs, hashes_K, born_K)


NUMPY_STEPS = WideSteps(numbers_and_bins, slots_and_crosses, score)
