"""Makes the steps that a chunk of samples has added up, and leaves the scratch zero again."""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any

import numpy as np

from springtide.kernels.cpu.wide.arrays import in_place
from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    GATE_PRIOR,
    INFORMATION,
    PLAIN_SQUARES,
    PLAIN_WEIGHT,
    WEIGHT,
    bits_of_count,
)

MAX_INFORMATION = 1000.0  # of a row and of a gate: steps never become too small to follow a changing world
MAX_SHARED_INFORMATION = 1e4  # of weights that every sample has
MAX_COUNT = 1e6  # samples that statistics remember
MAX_GATE = 5.0
# What a group is made of learns from the error alone: under a group weight of 0 it would grow without effect, and under
# a negative one against the error, until both overflow.
MIN_GROUP_WEIGHT, MAX_GROUP_WEIGHT = 0.1, 5.0
PLAIN_EPS = 0.1
SQUARES_MEMORY = 1e4  # occurrences of a row that its summed squares remember: Adagrad's steps never die either
SEEN_PRIOR = 10.0  # samples that the first variance is worth


@in_place
def count_sample(batch: Any, crosses: Any, arrays: Any, n: Any) -> None:
    """Count the slots of sample n, and how often their ids were seen before its chunk."""
    statistics_3F = arrays.seen_statistics_3F
    rows_S, fields_S, counts_U = batch.rows_S, batch.fields_S, batch.counts_U
    for s in range(batch.offsets_N1[n], batch.offsets_N1[n + 1]):
        f, x = fields_S[s], np.float64(bits_of_count(counts_U[rows_S[s]]))
        count = min(statistics_3F[2, f] + 1.0, MAX_COUNT)
        change = x - statistics_3F[0, f]
        mean = statistics_3F[0, f] + change / count
        variance = statistics_3F[1, f]
        statistics_3F[1, f] = variance + (change * (x - mean) - variance) / (count + SEEN_PRIOR)
        statistics_3F[0, f], statistics_3F[2, f] = mean, count
    count_totals(batch, crosses, arrays, n)


@in_place
def count_totals(batch: Any, crosses: Any, arrays: Any, n: Any) -> None:
    """Count sample n, its slots and its crosses if all pairs lived."""
    totals_4 = arrays.slot_totals_4
    arrays.num_samples_1[0] += 1
    totals_4[0] += 1.0
    totals_4[1] += batch.offsets_N1[n + 1] - batch.offsets_N1[n]
    totals_4[2] += crosses.potential_N[n]
    totals_4[3] += 1.0
    if totals_4[0] >= 2 * MAX_COUNT:
        for i in range(3):
            totals_4[i] *= 0.5


@in_place
def apply_chunk(
    batch: Any,
    crosses: Any,
    arrays: Any,
    scratch: Any,
    strengths: Any,
    start: Any,
    stop: Any,
    lr: Any,
    eps: Any,
) -> None:
    """Write rows, crosses, gates and the weights that all samples share."""
    # arrays are taken from their tuples once: each time costs two atomic operations
    num_labels, num_fields, first_slot = len(arrays.base_L), len(arrays.numbers_F), batch.offsets_N1[start]
    rows_S, fields_S, counts_U = batch.rows_S, batch.fields_S, batch.counts_U
    places_U, places_S, buckets_SL, buckets_CL = (
        scratch.places_U,
        scratch.places_S,
        scratch.buckets_SL,
        scratch.buckets_CL,
    )
    places_Q, places_C, times_V, cross_times_V = (
        scratch.places_Q,
        scratch.places_C,
        scratch.times_V,
        scratch.cross_times_V,
    )
    gates_LTB, information_LTB = arrays.gates_LTB, arrays.gate_information_LTB
    slopes_LTB, added_LTB = scratch.gate_slopes_LTB, scratch.gate_added_LTB
    wide_UW, slopes_VL, added_VL = batch.wide_UW, scratch.slopes_VL, scratch.added_VL
    plain_slopes_VL, gradients_VD = scratch.plain_slopes_VL, scratch.gradients_VD
    values_UD, squares_U = batch.values_UD, batch.squares_U
    for s in range(first_slot, batch.offsets_N1[stop]):
        u, f, v = rows_S[s], fields_S[s], places_S[s - first_slot]
        for label in range(num_labels):
            b = buckets_SL[s - first_slot, label]
            _step_gate(gates_LTB, information_LTB, slopes_LTB, added_LTB, label, f, b)
        if times_V[v] == 0:
            continue
        for label in range(num_labels):
            _step_row(wide_UW, slopes_VL, added_VL, plain_slopes_VL, strengths.first, strengths.plain, u, v, label)
        _step_vector(values_UD, squares_U, gradients_VD, u, v, times_V[v], lr, eps)
        counts_U[u] += times_V[v]
        times_V[v], places_U[u] = 0, -1
    base = crosses.start
    first_cross = crosses.offsets_R1[start - base]
    rows_C, pairs_C, weights_Q2L = crosses.rows_C, crosses.pairs_C, crosses.weights_Q2L
    cross_slopes_VL, cross_added_VL = scratch.cross_slopes_VL, scratch.cross_added_VL
    for c in range(first_cross, crosses.offsets_R1[stop - base]):
        q, f, v = rows_C[c], num_fields + pairs_C[c], places_C[c - first_cross]
        for label in range(num_labels):
            b = buckets_CL[c - first_cross, label]
            _step_gate(gates_LTB, information_LTB, slopes_LTB, added_LTB, label, f, b)
        if cross_times_V[v] == 0:
            continue
        cross_times_V[v], places_Q[q] = 0, -1
        for label in range(num_labels):
            added = cross_added_VL[v, label]
            if added > 0.0:
                information = min(weights_Q2L[q, 2 * label + 1] + added, MAX_INFORMATION)
                weights_Q2L[q, 2 * label + 1] = information
                weights_Q2L[q, 2 * label] += cross_slopes_VL[v, label] / (strengths.cross + information)
                cross_added_VL[v, label], cross_slopes_VL[v, label] = 0.0, 0.0
    _step_shared(arrays, scratch, strengths)


@in_place
def _step_gate(
    gates_LTB: Any, information_LTB: Any, slopes_LTB: Any, added_LTB: Any, label: Any, f: Any, b: Any
) -> None:
    added = added_LTB[label, f, b]
    if added > 0.0:
        information = min(information_LTB[label, f, b] + added, MAX_INFORMATION)
        information_LTB[label, f, b] = information
        gate = gates_LTB[label, f, b] + slopes_LTB[label, f, b] / (GATE_PRIOR + information)
        gates_LTB[label, f, b] = min(max(gate, 0.0), MAX_GATE)
        added_LTB[label, f, b] = 0.0
    slopes_LTB[label, f, b] = 0.0


@in_place
def _step_row(
    wide_UW: Any,
    slopes_VL: Any,
    added_VL: Any,
    plain_slopes_VL: Any,
    strength: Any,
    plain_rate: Any,
    u: Any,
    v: Any,
    label: Any,
) -> None:
    added, at = added_VL[v, label], COLUMNS * label
    if added > 0.0:
        information = min(wide_UW[u, at + INFORMATION] + added, MAX_INFORMATION)
        wide_UW[u, at + INFORMATION] = information
        wide_UW[u, at + WEIGHT] += slopes_VL[v, label] / (strength + information)
        slope = plain_slopes_VL[v, label]
        squares = wide_UW[u, at + PLAIN_SQUARES] + slope * slope
        wide_UW[u, at + PLAIN_SQUARES] = squares
        wide_UW[u, at + PLAIN_WEIGHT] += plain_rate * slope / (math.sqrt(squares) + PLAIN_EPS)
        added_VL[v, label], slopes_VL[v, label], plain_slopes_VL[v, label] = 0.0, 0.0, 0.0


@in_place
def _step_vector(values_UD: Any, squares_U: Any, slopes_VD: Any, u: Any, v: Any, times: Any, lr: Any, eps: Any) -> None:
    """Row-wise Adagrad that forgets, where rows have its state."""
    dim, total = values_UD.shape[1], 0.0
    for d in range(dim):
        total += slopes_VD[v, d] * slopes_VD[v, d]
    if total > 0.0:
        if len(squares_U):
            squares = squares_U[u] * max(1.0 - times / SQUARES_MEMORY, 0.0) + total / dim
            squares_U[u] = squares
            rate = lr / (math.sqrt(squares) + eps)
            for d in range(dim):
                values_UD[u, d] += rate * slopes_VD[v, d]
        for d in range(dim):
            slopes_VD[v, d] = 0.0


@in_place
def step_biases_and_groups(arrays: Any, scratch: Any) -> None:
    """Labels whose sums are zero keep their weights."""
    biases_L4 = scratch.biases_L4
    for label in range(len(arrays.base_L)):
        information = min(arrays.bias_information_L[label] + biases_L4[label, 1], MAX_SHARED_INFORMATION)
        arrays.bias_information_L[label] = information
        arrays.bias_L[label] += biases_L4[label, 0] / information
        information = min(arrays.plain_bias_information_L[label] + biases_L4[label, 3], MAX_SHARED_INFORMATION)
        arrays.plain_bias_information_L[label] = information
        arrays.plain_bias_L[label] += biases_L4[label, 2] / information
        for i in range(4):
            biases_L4[label, i] = 0.0
    _step(arrays.group_weights_LG, arrays.group_information_LG, scratch.group_slopes_LG, scratch.group_added_LG, 0.0)
    _limit_groups(arrays.group_weights_LG)
    _step(
        arrays.plain_group_weights_L2,
        arrays.plain_group_information_L2,
        scratch.plain_group_slopes_L2,
        scratch.plain_group_added_L2,
        0.0,
    )
    _limit_groups(arrays.plain_group_weights_L2)


@in_place
def _limit_groups(weights_LG: Any) -> None:
    for label in range(weights_LG.shape[0]):
        for g in range(weights_LG.shape[1]):
            weights_LG[label, g] = min(max(weights_LG[label, g], MIN_GROUP_WEIGHT), MAX_GROUP_WEIGHT)


@in_place
def _step_shared(arrays: Any, scratch: Any, strengths: Any) -> None:
    """Biases, groups, numbers, counts; fields whose sums are zero keep their weights."""
    step_biases_and_groups(arrays, scratch)
    _step(
        arrays.number_weights_LX,
        arrays.number_information_LX,
        scratch.number_slopes_LX,
        scratch.number_added_LX,
        strengths.number,
    )
    _step(
        arrays.plain_number_weights_LX,
        arrays.plain_number_information_LX,
        scratch.plain_number_slopes_LX,
        scratch.plain_number_added_LX,
        strengths.number,
    )
    weights_LF2, information_LF2 = arrays.seen_weights_LF2, arrays.seen_information_LF2
    slopes_LF2, added_LF2 = scratch.seen_slopes_LF2, scratch.seen_added_LF2
    for label in range(weights_LF2.shape[0]):
        for f in range(weights_LF2.shape[1]):
            for side in range(2):
                added = added_LF2[label, f, side]
                if added > 0.0:
                    information = min(information_LF2[label, f, side] + added, MAX_SHARED_INFORMATION)
                    information_LF2[label, f, side] = information
                    weights_LF2[label, f, side] += slopes_LF2[label, f, side] / (strengths.seen + information)
                    slopes_LF2[label, f, side], added_LF2[label, f, side] = 0.0, 0.0


@in_place
def _step(weights_LI: Any, information_LI: Any, slopes_LI: Any, added_LI: Any, strength: Any) -> None:
    for label in range(weights_LI.shape[0]):
        for i in range(weights_LI.shape[1]):
            added = added_LI[label, i]
            if added > 0.0:
                information = min(information_LI[label, i] + added, MAX_SHARED_INFORMATION)
                information_LI[label, i] = information
                weights_LI[label, i] += slopes_LI[label, i] / (strength + information)
                slopes_LI[label, i], added_LI[label, i] = 0.0, 0.0
