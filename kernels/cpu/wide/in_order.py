"""The in-order pass: each sample is scored by the rows that the samples before it have changed, then learned.

Formulas: deploy/docs/decisions/wide.md. A row, a gate or a weight that is in a sample more than once makes one step
with the sum of what its occurrences ask for.
"""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.cpu.late_weights import late_weight
from springtide.kernels.cpu.wide.arrays import CrossBatch, WideBatch, WidePass, in_place, new_pass
from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    GATE_PRIOR,
    INFORMATION,
    NUM_PARTS,
    PLAIN_SQUARES,
    PLAIN_WEIGHT,
    WEIGHT,
    Strengths,
    factorize,
    fetch_rows,
    find_first,
    find_repeats,
    gather,
    num_live_pairs,
    score_label,
    score_sample,
    sizes_of,
    standardize_counts,
    strengths_of,
    sum_squared_weights,
    take_weights,
)
from springtide.kernels.njit import njit
from springtide_client.wide.parameters import WideParameters

MIN_CURVATURE, MIN_ADDED = 1e-4, 1e-6
MAX_WEIGHT = 1000.0
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
MEMORY = 1e6  # samples that the base rate remembers
PRIOR_CLICKS, PRIOR_OTHERS = 1.0, 3.0  # as the parameters begin
MIXTURE_RATE, MAX_LOSS_DIFFERENCE, MIN_PROBABILITY = 0.1, 100.0, 1e-9


class Correction(NamedTuple):
    """The correction by a sample's label: residuals and curvatures by the logits of both learners, and steps."""

    weight: float  # of the sample, and of a label that may come late
    residual: float
    curvature: float
    most: float  # the largest curvature on the way of a step, where a sample or an id in it weighs more than 1
    step: float  # of weights: the residual, less where the step itself moves the logit far
    gate_step: float
    plain_residual: float
    plain_curvature: float


@njit(nogil=True, cache=True)
def in_order_pass(
    batch: WideBatch,
    crosses: CrossBatch,
    arrays: WideParameters,
    lr: float,
    eps: float,
    logits_NL: Any,
    errors_NL: Any,
    request_ends_N: Any,
    scored_NL: Any,
) -> None:
    """Score and learn samples crosses.start to crosses.stop; write logits, float64, and dloss/dnet, float32 (N, L).

    `lr`, `eps`: of the factorization machine's steps, row-wise Adagrad. `request_ends_N`: where the request of each
    sample ends, or empty. Then `scored_NL` gets the logits from before any sample of the request was learned.
    """
    _pass(new_pass(batch, crosses, arrays, logits_NL), lr, eps, errors_NL, request_ends_N, scored_NL)


@in_place
def _pass(data: WidePass, lr: float, eps: float, errors_NL: Any, request_ends_N: Any, scored_NL: Any) -> None:
    num_live, stop, logits_NL = num_live_pairs(data.arrays), data.crosses.stop, data.logits_NL
    num_labels, scored_until = logits_NL.shape[1], data.crosses.start
    for n in range(data.crosses.start, stop):
        if n + 1 < stop:
            fetch_rows(data, n + 1)
        strengths, is_first = strengths_of(data.arrays, num_live), n == scored_until and len(request_ends_N) > 0
        if is_first:
            scored_until = min(request_ends_N[n], stop)
            for after in range(n + 1, scored_until):
                score_sample(data, strengths, after)
                for label in range(num_labels):
                    scored_NL[after, label] = logits_NL[after, label]
        _learn_sample(data, strengths, n, lr, eps, errors_NL)
        if is_first:
            for label in range(num_labels):
                scored_NL[n, label] = logits_NL[n, label]


@in_place
def _learn_sample(data: WidePass, strengths: Strengths, n: int, lr: float, eps: float, errors_NL: Any) -> None:
    batch, arrays = data.batch, data.arrays
    largest = take_weights(data, n)
    has_repeats = find_repeats(data, n)
    standardize_counts(data, n)
    pairs, factorized = factorize(data, n), 0.0
    for label in range(len(arrays.base_L)):
        gather(data, strengths, n, label)
        logit, plain_logit, damping, gate_damping = score_label(data, strengths, n, has_repeats, label, pairs)
        errors_NL[n, label] = 0.0
        y = np.float64(batch.labels_NL[n, label])
        # a sample of enormous weight must not make a row useless for good
        weight = min(np.float64(batch.weights_NL[n, label]), MAX_WEIGHT)
        if math.isnan(y) or weight <= 0.0:
            continue
        if not math.isfinite(logit):
            errors_NL[n, label] = math.nan  # the net's gradients are refused
            continue
        offset, late = np.float64(batch.offsets_NL[n, label]), 1.0
        p, q = _sigmoid(logit + offset), _sigmoid(plain_logit + offset)
        if len(batch.shares_NL) > 0:
            final = _sigmoid(data.logits_NL[n, label])  # of both learners, as it is served
            late = late_weight(y, final, np.float64(batch.shares_NL[n, label]), batch.is_settled_L[label])
            weight *= late
        errors_NL[n, label] = np.float64(batch.weights_NL[n, label]) * late * (p - y)
        residual, curvature = weight * (y - p), weight * max(p * (1.0 - p), MIN_CURVATURE)
        # a sample of weight 1,000, or one with an id of such a weight, must not overshoot 1,000 times as far: 1/4 is
        # the largest curvature on the way
        most = max(0.0, 0.25 * (weight - 1.0 / largest))
        asked = Correction(
            weight,
            residual,
            curvature,
            most,
            residual / (1.0 + max(curvature, most) * damping),
            residual / (1.0 + max(curvature, most) * gate_damping),
            weight * (y - q),
            weight * max(q * (1.0 - q), MIN_CURVATURE),
        )
        factorized += asked.step
        _count_gains(data, n, asked)
        if has_repeats:
            # the plain learner's steps have no curvature to be damped by
            _step_repeated_items(data, n, asked, strengths.plain / math.sqrt(largest))
        else:
            _step_items(data, n, asked, strengths.plain)
        _scatter(data, n, label)
        _step_seen(data, strengths, n, label, asked)
        _step_numbers(data, strengths, n, label, asked)
        _step_biases_and_groups(data, label, asked)
        counted = weight * (np.float64(batch.counted_N[n]) / np.float64(batch.weights_NL[n, label]))
        _mix_and_count(arrays, label, y, weight, counted, p, q)
    if factorized != 0.0:
        _step_vectors(data, n, has_repeats, factorized * strengths.factorized, lr / largest, eps)
    if len(batch.is_counted_N) == 0 or batch.is_counted_N[n]:
        _count(data, n)


@in_place
def _sigmoid(z: float) -> Any:
    return 1.0 / (1.0 + math.exp(-z)) if z > -700.0 else 0.0


@in_place
def _count_gains(data: WidePass, n: int, asked: Correction) -> None:
    """Add to each pair what its crosses in sample n, which follow each other, have been worth."""
    crosses, gains_P, parts_K = data.crosses, data.arrays.pair_gains_P, data.work.parts_K
    pairs_C, first, share = crosses.pairs_C, crosses.offsets_R1[n - crosses.start], 0.0
    num_slots, num = sizes_of(data, n)
    for c in range(num - num_slots):
        share += parts_K[num_slots + c]
        if c + 1 == num - num_slots or pairs_C[first + c + 1] != pairs_C[first + c]:
            gain = asked.residual * share + 0.5 * asked.curvature * share * share
            gains_P[np.uint64(pairs_C[first + c])] += gain
            share = 0.0


@in_place
def _step_items(data: WidePass, n: int, asked: Correction, plain_rate: float) -> None:
    """Step the weights and gates of slots and crosses that have no row and no gate in common."""
    work, (num_slots, num) = data.work, sizes_of(data, n)
    step, gate_step, curvature = asked.step, asked.gate_step, asked.curvature
    weights_K, gates_K, new_weights_K = work.weights_K, work.gates_K, work.new_weights_K
    informations_K, strengths_K, gate_informations_K = work.informations_K, work.strengths_K, work.gate_informations_K
    for k in range(num):
        informations_K[k] = _raised(informations_K[k], _added(curvature, gates_K[k]))
    for k in range(num):
        new_weights_K[k] = weights_K[k] + (0.0 + step * gates_K[k]) / (strengths_K[k] + informations_K[k])
    for k in range(num):
        gate_informations_K[k] = _raised(gate_informations_K[k], curvature * weights_K[k] * weights_K[k])
    for k in range(num):
        added, slope = curvature * weights_K[k] * weights_K[k], 0.0 + gate_step * weights_K[k]
        gates_K[k] = _moved_gate(gates_K[k], slope, added, gate_informations_K[k])
    plain_weights_K, plain_squares_K = work.plain_weights_K, work.plain_squares_K
    square, slope = asked.plain_residual * asked.plain_residual, plain_rate * asked.plain_residual
    for k in range(num_slots):
        plain_squares_K[k] += square
    for k in range(num_slots):
        plain_weights_K[k] += slope / (math.sqrt(plain_squares_K[k]) + PLAIN_EPS)


@in_place
def _step_repeated_items(data: WidePass, n: int, asked: Correction, plain_rate: float) -> None:
    """`_step_items` of a sample with lists: items with a row, or a gate, in common step it with the sum of all."""
    work, (num_slots, num) = data.work, sizes_of(data, n)
    weights_K, gates_K, first_K, gate_first_K = work.weights_K, work.gates_K, work.first_K, work.gate_first_K
    slopes_K, added_K, gate_slopes_K, gate_added_K = work.slopes_K, work.added_K, work.gate_slopes_K, work.gate_added_K
    plain_slopes_K = work.plain_slopes_K
    find_first(work.places_K, work.first_of_TB, gate_first_K, 0, num)
    for k in range(num):
        slopes_K[k], added_K[k], gate_slopes_K[k], gate_added_K[k], plain_slopes_K[k] = 0.0, 0.0, 0.0, 0.0, 0.0
    if len(data.batch.weights_S) > 0:
        _sum_weighted_slopes(data, n, asked)
        num_summed = 0
    else:
        num_summed = num
    for k in range(num_summed):
        first, gate_first = first_K[k], gate_first_K[k]
        slopes_K[first] += asked.step * gates_K[k]
        added_K[first] += _added(asked.curvature, gates_K[k])
        gate_slopes_K[gate_first] += asked.gate_step * weights_K[k]
        gate_added_K[gate_first] += asked.curvature * weights_K[k] * weights_K[k]
        plain_slopes_K[first] += asked.plain_residual
    informations_K, strengths_K, gate_informations_K = work.informations_K, work.strengths_K, work.gate_informations_K
    plain_weights_K, plain_squares_K = work.plain_weights_K, work.plain_squares_K
    for k in range(num):
        first, gate_first = first_K[k], gate_first_K[k]
        informations_K[k] = _raised(informations_K[k], added_K[first])
        work.new_weights_K[k] = weights_K[k] + slopes_K[first] / (strengths_K[k] + informations_K[k])
        gate_informations_K[k] = _raised(gate_informations_K[k], gate_added_K[gate_first])
        gates_K[k] = _moved_gate(
            gates_K[k], gate_slopes_K[gate_first], gate_added_K[gate_first], gate_informations_K[k]
        )
        if k < num_slots:
            slope = plain_slopes_K[first]
            plain_squares_K[k] += slope * slope
            plain_weights_K[k] += plain_rate * slope / (math.sqrt(plain_squares_K[k]) + PLAIN_EPS)


@in_place
def _sum_weighted_slopes(data: WidePass, n: int, asked: Correction) -> None:
    """Add up, at the first of the items with a row or a gate in common, what each asks for by its weight."""
    work, (_, num) = data.work, sizes_of(data, n)
    weights_K, gates_K, x_K = work.weights_K, work.gates_K, work.x_K
    first_K, gate_first_K = work.first_K, work.gate_first_K
    for k in range(num):
        first, gate_first, x = first_K[k], gate_first_K[k], x_K[k]
        work.slopes_K[first] += asked.step * gates_K[k] * x
        work.added_K[first] += _added(asked.curvature, gates_K[k]) * (x * x)
        work.gate_slopes_K[gate_first] += asked.gate_step * weights_K[k] * x
        work.gate_added_K[gate_first] += asked.curvature * weights_K[k] * weights_K[k] * (x * x)
        work.plain_slopes_K[first] += asked.plain_residual * x


@in_place
def _added(curvature: float, gate: float) -> Any:
    added = curvature * gate * gate
    return added if added > MIN_ADDED else MIN_ADDED


@in_place
def _raised(information: float, added: float) -> Any:
    raised = information + added
    return raised if raised < MAX_INFORMATION else MAX_INFORMATION


@in_place
def _moved_gate(gate: float, slope: float, added: float, information: float) -> Any:
    moved = gate + slope / (GATE_PRIOR + information)
    moved = moved if moved > 0.0 else 0.0
    moved = moved if moved < MAX_GATE else MAX_GATE
    return moved if added > 0.0 else gate


@in_place
def _scatter(data: WidePass, n: int, label: int) -> None:
    """Write back what `gather` took."""
    batch, crosses, arrays, work = data.batch, data.crosses, data.arrays, data.work
    rows_S, states_US, rows_C, weights_Q2L = batch.rows_S, batch.states_US, crosses.rows_C, crosses.weights_Q2L
    weights_K, informations_K, places_K = work.new_weights_K, work.informations_K, work.places_K
    plain_weights_K, plain_squares_K = work.plain_weights_K, work.plain_squares_K
    first, at = batch.offsets_N1[n], np.uint64(batch.wide_from + COLUMNS * label)
    num_slots, num = sizes_of(data, n)
    for k in range(num_slots):
        u = np.uint64(rows_S[first + k])
        states_US[u, at + np.uint64(WEIGHT)] = weights_K[k]
        states_US[u, at + np.uint64(INFORMATION)] = informations_K[k]
        states_US[u, at + np.uint64(PLAIN_WEIGHT)] = plain_weights_K[k]
        states_US[u, at + np.uint64(PLAIN_SQUARES)] = plain_squares_K[k]
    first, at = crosses.offsets_R1[n - crosses.start], np.uint64(2 * label)
    for c in range(num - num_slots):
        q, k = np.uint64(rows_C[first + c]), num_slots + c
        weights_Q2L[q, at] = weights_K[k]
        weights_Q2L[q, at + np.uint64(1)] = informations_K[k]
    gates_T, gate_informations_T = arrays.gates_LTB[label].reshape(-1), arrays.gate_information_LTB[label].reshape(-1)
    gates_K, gate_informations_K = work.gates_K, work.gate_informations_K
    for k in range(num):
        place = np.uint64(places_K[k])
        gates_T[place], gate_informations_T[place] = gates_K[k], gate_informations_K[k]


@in_place
def _step_seen(data: WidePass, strengths: Strengths, n: int, label: int, asked: Correction) -> None:
    """Step each field's two weights of how often an id was seen; the slots of a field follow each other."""
    batch, arrays, work = data.batch, data.arrays, data.work
    fields_S, first, step, curvature = batch.fields_S, batch.offsets_N1[n], asked.step, asked.curvature
    weights_F2, informations_F2 = arrays.seen_weights_LF2[label], arrays.seen_information_LF2[label]
    seen_K, never_K, x_K = work.seen_K, work.never_K, work.x_K
    num_slots = batch.offsets_N1[n + 1] - first
    slope, added, never_slope, never_added = 0.0, 0.0, 0.0, 0.0
    for k in range(num_slots):
        f, x = np.uint64(fields_S[first + k]), seen_K[k]
        slope += step * x
        added += curvature * x * x
        if never_K[k] > 0.0:
            never_slope += step * x_K[k]  # 1 without weights
            never_added += curvature * x_K[k] * x_K[k]
        if k + 1 < num_slots and fields_S[first + k + 1] == fields_S[first + k]:
            continue
        if added > 0.0:
            information = min(informations_F2[f, 0] + added, MAX_SHARED_INFORMATION)
            informations_F2[f, 0] = information
            weights_F2[f, 0] += slope / (strengths.seen + information)
        if never_added > 0.0:
            information = min(informations_F2[f, 1] + never_added, MAX_SHARED_INFORMATION)
            informations_F2[f, 1] = information
            weights_F2[f, 1] += never_slope / (strengths.seen + information)
        slope, added, never_slope, never_added = 0.0, 0.0, 0.0, 0.0


@in_place
def _step_numbers(data: WidePass, strengths: Strengths, n: int, label: int, asked: Correction) -> None:
    batch, arrays, work = data.batch, data.arrays, data.work
    x_X, moves_K, strength = batch.x_NX[n], work.seen_moves_K, strengths.number
    plain_informations_X = arrays.plain_number_information_LX[label]
    for k in range(len(x_X)):
        moves_K[k] = x_X[k] * x_X[k] / (strength + plain_informations_X[k])
    most, moved = max(0.0, 0.25 * (asked.weight - 1.0)), 0.0
    for k in range(len(x_X)):
        moved += moves_K[k]
    plain_step, plain_weights_X = asked.plain_residual / (1.0 + most * moved), arrays.plain_number_weights_LX[label]
    weights_X, informations_X = arrays.number_weights_LX[label], arrays.number_information_LX[label]
    _step_weights(weights_X, informations_X, x_X, asked.step, asked.curvature, strength)
    _step_weights(plain_weights_X, plain_informations_X, x_X, plain_step, asked.plain_curvature, strength)


@in_place
def _step_weights(
    weights_X: Any, informations_X: Any, x_X: Any, step: float, curvature: float, strength: float
) -> None:
    for k in range(len(x_X)):
        information = informations_X[k] + curvature * x_X[k] * x_X[k]
        informations_X[k] = information if information < MAX_SHARED_INFORMATION else MAX_SHARED_INFORMATION
    for k in range(len(x_X)):
        weight = weights_X[k] + (0.0 + step * x_X[k]) / (strength + informations_X[k])
        weights_X[k] = weight if curvature * x_X[k] * x_X[k] > 0.0 else weights_X[k]


@in_place
def _step_biases_and_groups(data: WidePass, label: int, asked: Correction) -> None:
    """Step what weighs the parts of both learners' scores."""
    arrays, work, most = data.arrays, data.work, max(0.0, 0.25 * (asked.weight - 1.0))
    residual, curvature = asked.residual, asked.curvature
    plain, plain_curvature = asked.plain_residual, asked.plain_curvature
    _step_bias(arrays.bias_L, arrays.bias_information_L, label, most, residual, curvature)
    _step_bias(arrays.plain_bias_L, arrays.plain_bias_information_L, label, most, plain, plain_curvature)
    weights_G, informations_G = arrays.group_weights_LG[label], arrays.group_information_LG[label]
    _step_groups(weights_G, informations_G, work.parts_G, NUM_PARTS, asked.most, residual, curvature)
    weights_2, informations_2 = arrays.plain_group_weights_L2[label], arrays.plain_group_information_L2[label]
    _step_groups(weights_2, informations_2, work.plain_parts_G, 2, asked.most, plain, plain_curvature)


@in_place
def _step_bias(bias_L: Any, information_L: Any, label: int, most: float, residual: float, curvature: float) -> None:
    slope = residual / (1.0 + most / information_L[label])
    information_L[label] = min(information_L[label] + curvature, MAX_SHARED_INFORMATION)
    bias_L[label] += slope / information_L[label]


@in_place
def _step_groups(
    weights_G: Any, information_G: Any, parts_G: Any, num_parts: int, most: float, residual: float, curvature: float
) -> None:
    moved = 0.0
    for g in range(num_parts):
        moved += parts_G[g] * parts_G[g] / information_G[g]
    step = residual / (1.0 + max(curvature, most) * moved)
    for g in range(num_parts):
        added = curvature * parts_G[g] * parts_G[g]
        if added > 0.0:
            information_G[g] = min(information_G[g] + added, MAX_SHARED_INFORMATION)
            weights_G[g] += step * parts_G[g] / information_G[g]
        weights_G[g] = min(max(weights_G[g], MIN_GROUP_WEIGHT), MAX_GROUP_WEIGHT)


@in_place
def _mix_and_count(
    arrays: WideParameters, label: int, y: float, weight: float, counted: float, p: float, q: float
) -> None:
    """Compare both learners by their losses, and count the label as so many samples' as the sample stands for."""
    loss = -math.log(max(p if y > 0.5 else 1.0 - p, MIN_PROBABILITY))
    plain_loss = -math.log(max(q if y > 0.5 else 1.0 - q, MIN_PROBABILITY))
    difference = arrays.loss_difference_L[label] + weight * (plain_loss - loss)
    difference = min(max(difference, -MAX_LOSS_DIFFERENCE), MAX_LOSS_DIFFERENCE)
    arrays.loss_difference_L[label] = difference
    arrays.mixture_L[label] = 1.0 / (1.0 + math.exp(-MIXTURE_RATE * difference))
    clicks, samples = arrays.clicks_L[label] + counted * y, arrays.samples_L[label] + counted
    if samples > MEMORY:
        clicks, samples = clicks * MEMORY / samples, MEMORY
    # the samples that stood for what is not known yet are never forgotten: a rate of 0 or 1 has no logit
    clicks = max(min(clicks, samples - PRIOR_OTHERS), PRIOR_CLICKS)
    arrays.clicks_L[label], arrays.samples_L[label] = clicks, samples
    arrays.base_L[label] = math.log(clicks / (samples - clicks))


@in_place
def _step_vectors(data: WidePass, n: int, has_repeats: bool, scale: float, lr: float, eps: float) -> None:
    """Row-wise Adagrad that forgets, where rows have its state."""
    batch, work = data.batch, data.work
    rows_S, values_UD, states_US, first_K = batch.rows_S, batch.values_UD, batch.states_US, work.first_K
    sums_D, gradients_D, dim = work.sums_D, work.gradients_D, values_UD.shape[1]
    if not batch.has_squares:
        return
    first, is_weighted, energies_K = batch.offsets_N1[n], len(batch.weights_S) > 0, work.added_K
    if is_weighted:
        sum_squared_weights(data, n)
    for k in range(batch.offsets_N1[n + 1] - first - data.arrays.num_bias_1[0]):
        if has_repeats and first_K[k] < k:
            continue
        u, total, remembered = np.uint64(rows_S[first + k]), 0.0, 1.0 - 1 / SQUARES_MEMORY
        values_D = values_UD[u]
        for d in range(dim):
            gradients_D[d] = 0.0 + scale * (sums_D[d] - values_D[d])
        if is_weighted:
            for d in range(dim):
                gradients_D[d] = 0.0 + scale * (work.times_K[k] * sums_D[d] - energies_K[k] * values_D[d])
        elif has_repeats and work.times_K[k] > 1.0:
            remembered = max(1.0 - work.times_K[k] / SQUARES_MEMORY, 0.0)
            for d in range(dim):
                gradient = gradients_D[d]
                for _ in range(1, int(work.times_K[k])):
                    gradients_D[d] += gradient
        for d in range(dim):
            total += gradients_D[d] * gradients_D[d]
        if total > 0.0:
            squares = states_US[u, 0] * remembered + total / dim
            states_US[u, 0] = squares
            rate = lr / (math.sqrt(squares) + eps)
            for d in range(dim):
                values_D[d] += rate * gradients_D[d]


@in_place
def _count(data: WidePass, n: int) -> None:
    """Count the sample, its slots, its crosses if all pairs lived, and how often its ids were seen before."""
    batch, crosses, arrays, work = data.batch, data.crosses, data.arrays, data.work
    rows_S, fields_S, counts_U, statistics_3F = batch.rows_S, batch.fields_S, batch.counts_U, arrays.seen_statistics_3F
    bits_K, totals_4, first = work.bits_K, arrays.slot_totals_4, batch.offsets_N1[n]
    num_slots = batch.offsets_N1[n + 1] - first
    for k in range(num_slots):
        f, x = np.uint64(fields_S[first + k]), bits_K[k]
        count = statistics_3F[2, f] + 1.0
        count = count if count < MAX_COUNT else MAX_COUNT
        change = x - statistics_3F[0, f]
        mean = statistics_3F[0, f] + change / count
        variance = statistics_3F[1, f]
        statistics_3F[1, f] = variance + (change * (x - mean) - variance) / (count + SEEN_PRIOR)
        statistics_3F[0, f], statistics_3F[2, f] = mean, count
        counts_U[np.uint64(rows_S[first + k])] += 1
    arrays.num_samples_1[0] += 1
    totals_4[0] += 1.0
    totals_4[1] += num_slots
    totals_4[2] += crosses.potential_N[n]
    totals_4[3] += 1.0
    if totals_4[0] >= 2 * MAX_COUNT:
        for i in range(3):
            totals_4[i] *= 0.5
