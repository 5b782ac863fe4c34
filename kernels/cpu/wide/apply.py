"""Makes the steps that a chunk of samples has added up, and leaves the scratch zero again."""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.wide.score import (
    COLUMNS,
    GATE_PRIOR,
    INFORMATION,
    NUM_PARTS,
    PLAIN_SQUARES,
    PLAIN_WEIGHT,
    WEIGHT,
    bits_of_count,
)

MAX_INFORMATION = 1000.0  # of a row and of a gate: steps never become too small to follow a changing world
MAX_SHARED_INFORMATION = 1e4  # of weights that every sample has
MAX_COUNT = 1e6  # samples that statistics remember
MAX_GATE = 5.0
PLAIN_EPS = 0.1
SEEN_PRIOR = 10.0  # samples that the first variance is worth


@njit(nogil=True, cache=True)
def count_sample(batch: Any, crosses: Any, arrays: Any, n: Any) -> None:
    """Count the slots of sample n, and how often their ids were seen before its chunk."""
    statistics_3F, totals_4 = arrays.seen_statistics_3F, arrays.slot_totals_4
    for s in range(batch.offsets_N1[n], batch.offsets_N1[n + 1]):
        f, x = batch.fields_S[s], np.float64(bits_of_count(batch.counts_U[batch.rows_S[s]]))
        count = min(statistics_3F[2, f] + 1.0, MAX_COUNT)
        change = x - statistics_3F[0, f]
        mean = statistics_3F[0, f] + change / count
        variance = statistics_3F[1, f]
        statistics_3F[1, f] = variance + (change * (x - mean) - variance) / (count + SEEN_PRIOR)
        statistics_3F[0, f], statistics_3F[2, f] = mean, count
    arrays.num_samples_1[0] += 1
    totals_4[0] += 1.0
    totals_4[1] += batch.offsets_N1[n + 1] - batch.offsets_N1[n]
    totals_4[2] += crosses.potential_N[n]
    totals_4[3] += 1.0
    if totals_4[0] >= 2 * MAX_COUNT:
        for i in range(3):
            totals_4[i] *= 0.5


@njit(nogil=True, cache=True)
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
    num_labels, num_fields, first_slot = len(arrays.base_L), len(arrays.numbers_F), batch.offsets_N1[start]
    for s in range(first_slot, batch.offsets_N1[stop]):
        u, f = batch.rows_S[s], batch.fields_S[s]
        for label in range(num_labels):
            _step_gate(arrays, scratch, label, f, scratch.buckets_SL[s - first_slot, label])
        if scratch.times_U[u] == 0:
            continue
        _step_row(batch, scratch, strengths, u, num_labels)
        _step_vector(batch, scratch, u, lr, eps)
        batch.counts_U[u] += scratch.times_U[u]
        scratch.times_U[u] = 0
    base = crosses.start
    first_cross = crosses.offsets_R1[start - base]
    for c in range(first_cross, crosses.offsets_R1[stop - base]):
        q, f = crosses.rows_C[c], num_fields + crosses.pairs_C[c]
        for label in range(num_labels):
            _step_gate(arrays, scratch, label, f, scratch.buckets_CL[c - first_cross, label])
        if scratch.times_Q[q] == 0:
            continue
        scratch.times_Q[q] = 0
        for label in range(num_labels):
            added = scratch.cross_added_QL[q, label]
            if added > 0.0:
                information = min(crosses.weights_Q2L[q, 2 * label + 1] + added, MAX_INFORMATION)
                slope = scratch.cross_slopes_QL[q, label]
                crosses.weights_Q2L[q, 2 * label + 1] = information
                crosses.weights_Q2L[q, 2 * label] += slope / (strengths.cross + information)
                scratch.cross_added_QL[q, label], scratch.cross_slopes_QL[q, label] = 0.0, 0.0
    for label in range(num_labels):
        _step_shared(arrays, scratch, strengths, label)


@njit(nogil=True, cache=True)
def _step_gate(arrays: Any, scratch: Any, label: Any, f: Any, b: Any) -> None:
    added = scratch.gate_added_LTB[label, f, b]
    if added > 0.0:
        information = min(arrays.gate_information_LTB[label, f, b] + added, MAX_INFORMATION)
        arrays.gate_information_LTB[label, f, b] = information
        gate = arrays.gates_LTB[label, f, b] + scratch.gate_slopes_LTB[label, f, b] / (GATE_PRIOR + information)
        arrays.gates_LTB[label, f, b] = min(max(gate, 0.0), MAX_GATE)
    scratch.gate_added_LTB[label, f, b], scratch.gate_slopes_LTB[label, f, b] = 0.0, 0.0


@njit(nogil=True, cache=True)
def _step_row(batch: Any, scratch: Any, strengths: Any, u: Any, num_labels: Any) -> None:
    wide_W = batch.wide_UW[u]
    for label in range(num_labels):
        added, at = scratch.added_UL[u, label], COLUMNS * label
        if added > 0.0:
            information = min(wide_W[at + INFORMATION] + added, MAX_INFORMATION)
            wide_W[at + INFORMATION] = information
            wide_W[at + WEIGHT] += scratch.slopes_UL[u, label] / (strengths.first + information)
            slope = scratch.plain_slopes_UL[u, label]
            squares = wide_W[at + PLAIN_SQUARES] + slope * slope
            wide_W[at + PLAIN_SQUARES] = squares
            wide_W[at + PLAIN_WEIGHT] += strengths.plain * slope / (math.sqrt(squares) + PLAIN_EPS)
            scratch.added_UL[u, label], scratch.slopes_UL[u, label] = 0.0, 0.0
            scratch.plain_slopes_UL[u, label] = 0.0


@njit(nogil=True, cache=True)
def _step_vector(batch: Any, scratch: Any, u: Any, lr: Any, eps: Any) -> None:
    """Row-wise Adagrad, where rows have its state."""
    slopes_D, dim = scratch.gradients_UD[u], batch.values_UD.shape[1]
    if len(batch.squares_U) == 0:
        for d in range(dim):
            slopes_D[d] = 0.0
        return
    total = 0.0
    for d in range(dim):
        total += slopes_D[d] * slopes_D[d]
    if total > 0.0:
        squares = batch.squares_U[u] + total / dim
        batch.squares_U[u] = squares
        rate = lr / (math.sqrt(squares) + eps)
        for d in range(dim):
            batch.values_UD[u, d] += rate * slopes_D[d]
            slopes_D[d] = 0.0


@njit(nogil=True, cache=True)
def _step_shared(arrays: Any, scratch: Any, strengths: Any, label: Any) -> None:
    """Biases, groups, numbers, counts; fields whose sums are zero keep their weights."""
    biases_4 = scratch.biases_L4[label]
    arrays.bias_information_L[label] = min(arrays.bias_information_L[label] + biases_4[1], MAX_SHARED_INFORMATION)
    arrays.bias_L[label] += biases_4[0] / arrays.bias_information_L[label]
    information = min(arrays.plain_bias_information_L[label] + biases_4[3], MAX_SHARED_INFORMATION)
    arrays.plain_bias_information_L[label] = information
    arrays.plain_bias_L[label] += biases_4[2] / information
    biases_4[:] = 0.0
    for g in range(NUM_PARTS):
        _step(
            arrays.group_weights_LG[label],
            arrays.group_information_LG[label],
            scratch.group_slopes_LG[label],
            scratch.group_added_LG[label],
            g,
            0.0,
        )
    for g in range(2):
        _step(
            arrays.plain_group_weights_L2[label],
            arrays.plain_group_information_L2[label],
            scratch.plain_group_slopes_L2[label],
            scratch.plain_group_added_L2[label],
            g,
            0.0,
        )
    for k in range(arrays.number_weights_LX.shape[1]):
        _step(
            arrays.number_weights_LX[label],
            arrays.number_information_LX[label],
            scratch.number_slopes_LX[label],
            scratch.number_added_LX[label],
            k,
            strengths.number,
        )
        _step(
            arrays.plain_number_weights_LX[label],
            arrays.plain_number_information_LX[label],
            scratch.plain_number_slopes_LX[label],
            scratch.plain_number_added_LX[label],
            k,
            strengths.number,
        )
    for f in range(len(arrays.numbers_F)):
        for side in range(2):
            _step(
                arrays.seen_weights_LF2[label, f],
                arrays.seen_information_LF2[label, f],
                scratch.seen_slopes_LF2[label, f],
                scratch.seen_added_LF2[label, f],
                side,
                strengths.seen,
            )


@njit(nogil=True, cache=True)
def _step(weights: Any, information: Any, slopes: Any, added: Any, i: Any, strength: Any) -> None:
    if added[i] > 0.0:
        information[i] = min(information[i] + added[i], MAX_SHARED_INFORMATION)
        weights[i] += slopes[i] / (strength + information[i])
        slopes[i], added[i] = 0.0, 0.0
