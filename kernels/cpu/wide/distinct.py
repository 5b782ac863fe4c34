"""Scores and learns one sample whose fields have one id each: no row, no gate and no weight is in it twice.

What a sample touches is gathered into short arrays, worked on there eight numbers at once, and written back; sums run
in the order of `score` and `learn`, so that the results are theirs bit by bit. Samples with lists of ids go there.
"""

# K: slots of a sample, then its crosses; other axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.cpu.wide.apply import (
    MAX_COUNT,
    MAX_GATE,
    MAX_INFORMATION,
    MAX_SHARED_INFORMATION,
    PLAIN_EPS,
    SEEN_PRIOR,
    SQUARES_MEMORY,
    count_totals,
    step_biases_and_groups,
)
from springtide.kernels.cpu.wide.arrays import CrossBatch, WideArrays, WideBatch, in_place
from springtide.kernels.cpu.wide.learn import MAX_WEIGHT, MIN_ADDED, MIN_CURVATURE, add_groups, mix_and_count, sigmoid
from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    GATE_PRIOR,
    INFORMATION,
    MAX_SEEN_BITS,
    NUM_BUCKETS,
    PLAIN_SQUARES,
    PLAIN_WEIGHT,
    WEIGHT,
    factorize,
    write_logits,
)

# exponents of float64: bucket 0 ends where 4 H is 1; a count of 1 has one bit
EXPONENT_AT, EXPONENT_OF_A_QUARTER, EXPONENT_OF_A_HALF = 52, 1020, 1022


class Lines(NamedTuple):
    """What one sample touches, of one label at a time, float64."""

    weights_K: Any
    informations_K: Any
    information_bits_K: Any  # int64, the same memory
    strengths_K: Any
    places_K: Any  # int64, of an item's gate
    gates_K: Any
    gate_informations_K: Any
    parts_K: Any
    moves_K: Any
    gate_moves_K: Any
    new_weights_K: Any
    new_informations_K: Any
    new_gates_K: Any
    new_gate_informations_K: Any
    plain_weights_K: Any
    plain_squares_K: Any
    seen_K: Any  # xn of a slot
    never_K: Any  # 1 where its id was never seen, otherwise 0
    bits_K: Any
    seen_parts_K: Any
    seen_moves_K: Any
    never_moves_K: Any
    gradients_D: Any


def new_lines(batch: WideBatch, crosses: CrossBatch, arrays: WideArrays) -> Lines:
    """Return arrays that are long enough for every sample."""
    slots_N = np.diff(batch.offsets_N1[crosses.start : crosses.stop + 1])
    most = int((slots_N + np.diff(crosses.offsets_R1)).max(initial=0))
    most = max(most, arrays.number_weights_LX.shape[1])
    informations_K = np.zeros(most)
    others = {name: np.zeros(most) for name in Lines._fields}
    others |= {"informations_K": informations_K, "information_bits_K": informations_K.view(np.int64)}
    others |= {"places_K": np.zeros(most, np.int64), "gradients_D": np.zeros(batch.values_UD.shape[1])}
    return Lines(**others)


@in_place
def is_distinct(batch: Any, crosses: Any, n: Any) -> Any:
    """Return True if no field of sample n has two slots, and no pair of fields two crosses."""
    fields_S, pairs_C, base = batch.fields_S, crosses.pairs_C, crosses.start
    repeated = 0
    for s in range(batch.offsets_N1[n] + 1, batch.offsets_N1[n + 1]):
        repeated += fields_S[s] == fields_S[s - 1]
    for c in range(crosses.offsets_R1[n - base] + 1, crosses.offsets_R1[n - base + 1]):
        repeated += pairs_C[c] == pairs_C[c - 1]
    return repeated == 0


@in_place
def learn_distinct(
    batch: Any,
    crosses: Any,
    arrays: Any,
    scratch: Any,
    lines: Any,
    strengths: Any,
    n: Any,
    lr: Any,
    eps: Any,
    logits_NL: Any,
    errors_NL: Any,
) -> None:
    """Do with sample n what score_sample, add_sample, count_sample and apply_chunk do with a chunk of one."""
    pairs, factorized = factorize(batch, scratch, 0, batch.offsets_N1[n], batch.offsets_N1[n + 1]), 0.0
    _standardize_counts(batch, arrays, lines, n)
    whole_weight = min(np.float64(batch.weights_N[n]), MAX_WEIGHT)
    for label in range(len(arrays.base_L)):
        _gather(batch, crosses, arrays, lines, strengths, n, label)
        _score(batch, crosses, arrays, scratch, lines, strengths, n, label, pairs, logits_NL)
        errors_NL[n, label] = 0.0
        y = np.float64(batch.labels_NL[n, label])
        logit, other = scratch.logits_RL2[0, label, 0], scratch.logits_RL2[0, label, 1]
        if math.isnan(y) or whole_weight <= 0.0:
            continue
        if not math.isfinite(logit):
            errors_NL[n, label] = math.nan  # the net's gradients are refused
            continue
        p, q = sigmoid(logit), sigmoid(other)
        residual, curvature = whole_weight * (y - p), whole_weight * max(p * (1.0 - p), MIN_CURVATURE)
        plain_residual = whole_weight * (y - q)
        plain_curvature = whole_weight * max(q * (1.0 - q), MIN_CURVATURE)
        errors_NL[n, label] = np.float64(batch.weights_N[n]) * (p - y)
        most = max(curvature, 0.25 * (whole_weight - 1.0))
        step = residual / (1.0 + most * scratch.damping_RL[0, label])
        gate_step = residual / (1.0 + most * scratch.gate_damping_RL[0, label])
        factorized += step
        _step_items(
            lines,
            batch.offsets_N1[n + 1] - batch.offsets_N1[n],
            step,
            curvature,
            gate_step,
            plain_residual,
            strengths.plain,
            crosses,
            n,
        )
        _count_gains(crosses, arrays, lines, n, batch.offsets_N1[n + 1] - batch.offsets_N1[n], residual, curvature)
        _scatter(batch, crosses, arrays, lines, n, label)
        _step_seen(batch, arrays, lines, strengths, n, label, step, curvature)
        _step_numbers(
            batch, arrays, lines, strengths, n, label, step, curvature, plain_residual, plain_curvature, whole_weight
        )
        add_groups(arrays, scratch, 0, 1, label, whole_weight, residual, curvature, plain_residual, plain_curvature)
        mix_and_count(arrays, label, y, whole_weight, p, q)
    step_biases_and_groups(arrays, scratch)
    if factorized != 0.0:
        _step_vectors(batch, scratch, lines, n, factorized * strengths.factorized, lr, eps)
    _count(batch, crosses, arrays, lines, n)


@in_place
def _standardize_counts(batch: Any, arrays: Any, lines: Any, n: Any) -> None:
    rows_S, fields_S, counts_U, statistics_3F = batch.rows_S, batch.fields_S, batch.counts_U, arrays.seen_statistics_3F
    bits_K, seen_K, never_K, moves_K = lines.bits_K, lines.seen_K, lines.never_K, lines.moves_K
    first = batch.offsets_N1[n]
    num_slots = batch.offsets_N1[n + 1] - first
    counts_K, count_bits_K = lines.informations_K, lines.information_bits_K
    for k in range(num_slots):
        f = np.uint64(fields_S[first + k])
        counts_K[k] = counts_U[np.uint64(rows_S[first + k])]
        seen_K[k], moves_K[k] = statistics_3F[0, f], statistics_3F[1, f]
    for k in range(num_slots):
        bits = (count_bits_K[k] >> EXPONENT_AT) - EXPONENT_OF_A_HALF
        bits = bits if bits > 0 else 0
        bits_K[k] = bits if bits < MAX_SEEN_BITS else MAX_SEEN_BITS
    for k in range(num_slots):
        never_K[k] = 1.0 if bits_K[k] == 0.0 else 0.0
        seen_K[k] = bits_K[k] - seen_K[k]
    for k in range(num_slots):
        standard = seen_K[k] / math.sqrt(moves_K[k] + 0.01)
        standard = standard if standard > -3.0 else -3.0
        seen_K[k] = standard if standard < 3.0 else 3.0


@in_place
def _gather(batch: Any, crosses: Any, arrays: Any, lines: Any, strengths: Any, n: Any, label: Any) -> None:
    """Take weights, informations and gates of the slots and crosses."""
    rows_S, fields_S, wide_UW = batch.rows_S, batch.fields_S, batch.wide_UW
    rows_C, pairs_C, weights_Q2L = crosses.rows_C, crosses.pairs_C, crosses.weights_Q2L
    weights_K, informations_K, strengths_K = lines.weights_K, lines.informations_K, lines.strengths_K
    plain_weights_K, plain_squares_K, places_K = lines.plain_weights_K, lines.plain_squares_K, lines.places_K
    num_fields, first, base = len(arrays.numbers_F), batch.offsets_N1[n], crosses.start
    num_slots, at = batch.offsets_N1[n + 1] - first, np.uint64(COLUMNS * label)
    for k in range(num_slots):
        u = np.uint64(rows_S[first + k])
        weights_K[k] = wide_UW[u, at + np.uint64(WEIGHT)]
        informations_K[k] = wide_UW[u, at + np.uint64(INFORMATION)]
        plain_weights_K[k] = wide_UW[u, at + np.uint64(PLAIN_WEIGHT)]
        plain_squares_K[k] = wide_UW[u, at + np.uint64(PLAIN_SQUARES)]
        places_K[k] = fields_S[first + k] * NUM_BUCKETS
        strengths_K[k] = strengths.first
    first = crosses.offsets_R1[n - base]
    num_crosses, at = crosses.offsets_R1[n - base + 1] - first, np.uint64(2 * label)
    for c in range(num_crosses):
        q, k = np.uint64(rows_C[first + c]), num_slots + c
        weights_K[k] = weights_Q2L[q, at]
        informations_K[k] = weights_Q2L[q, at + np.uint64(1)]
        places_K[k] = (num_fields + pairs_C[first + c]) * NUM_BUCKETS
        strengths_K[k] = strengths.cross
    num, bits_K = num_slots + num_crosses, lines.information_bits_K
    for k in range(num):
        bucket = (bits_K[k] >> EXPONENT_AT) - EXPONENT_OF_A_QUARTER
        bucket = bucket if bucket > 0 else 0
        places_K[k] += bucket if bucket < NUM_BUCKETS - 1 else NUM_BUCKETS - 1
    gates_T, gate_informations_T = arrays.gates_LTB[label].reshape(-1), arrays.gate_information_LTB[label].reshape(-1)
    gates_K, gate_informations_K = lines.gates_K, lines.gate_informations_K
    for k in range(num):
        place = np.uint64(places_K[k])
        gates_K[k], gate_informations_K[k] = gates_T[place], gate_informations_T[place]


@in_place
def _score(
    batch: Any,
    crosses: Any,
    arrays: Any,
    scratch: Any,
    lines: Any,
    strengths: Any,
    n: Any,
    label: Any,
    pairs: Any,
    logits_NL: Any,
) -> None:
    """Write the parts of the score, the logits, and how far a step would move them."""
    fields_S, first, base = batch.fields_S, batch.offsets_N1[n], crosses.start
    num_slots = batch.offsets_N1[n + 1] - first
    num = num_slots + crosses.offsets_R1[n - base + 1] - crosses.offsets_R1[n - base]
    weights_K, gates_K, parts_K, moves_K = lines.weights_K, lines.gates_K, lines.parts_K, lines.moves_K
    informations_K, strengths_K = lines.informations_K, lines.strengths_K
    gate_moves_K, gate_informations_K = lines.gate_moves_K, lines.gate_informations_K
    for k in range(num):
        parts_K[k] = gates_K[k] * weights_K[k]
    for k in range(num):
        moves_K[k] = gates_K[k] * gates_K[k] / (strengths_K[k] + informations_K[k])
    for k in range(num):
        gate_moves_K[k] = weights_K[k] * weights_K[k] / (GATE_PRIOR + gate_informations_K[k])
    seen_F2, seen_informations_F2 = arrays.seen_weights_LF2[label], arrays.seen_information_LF2[label]
    seen_K, never_K, seen_parts_K = lines.seen_K, lines.never_K, lines.seen_parts_K
    seen_moves_K, never_moves_K = lines.seen_moves_K, lines.never_moves_K
    for k in range(num_slots):
        f, x = np.uint64(fields_S[first + k]), seen_K[k]
        part = seen_F2[f, 0] * x
        seen_parts_K[k] = part + seen_F2[f, 1] if never_K[k] > 0.0 else part
        seen_moves_K[k] = x * x / (strengths.seen + seen_informations_F2[f, 0])
        never_moves_K[k] = never_K[k] / (strengths.seen + seen_informations_F2[f, 1])
    summed, seen, plain, damping, gate_damping, moved = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    plain_weights_K = lines.plain_weights_K
    for k in range(num_slots):
        summed += parts_K[k]
        plain += plain_weights_K[k]
        seen += seen_parts_K[k]
        damping += moves_K[k]
        gate_damping += gate_moves_K[k]
        moved += seen_moves_K[k]
        moved += never_moves_K[k]  # 0 changes nothing: the sum is not -0
    crossed = 0.0
    for k in range(num_slots, num):
        crossed += parts_K[k]
        damping += moves_K[k]
        gate_damping += gate_moves_K[k]
    x_X, informations_X = batch.x_NX[n], arrays.number_information_LX[label]
    weights_X, plain_weights_X = arrays.number_weights_LX[label], arrays.plain_number_weights_LX[label]
    for k in range(len(x_X)):
        seen_moves_K[k] = x_X[k] * x_X[k] / (strengths.number + informations_X[k])
    numbers, plain_numbers = 0.0, 0.0
    for k in range(len(x_X)):
        numbers += x_X[k] * weights_X[k]
        plain_numbers += x_X[k] * plain_weights_X[k]
        moved += seen_moves_K[k]
    parts_LG = scratch.parts_RLG[0]
    parts_LG[label, 0], parts_LG[label, 1], parts_LG[label, 2] = summed, crossed, numbers
    parts_LG[label, 3], parts_LG[label, 4] = pairs * strengths.factorized, batch.net_NL[n, label]
    parts_LG[label, 5] = seen
    write_logits(arrays, scratch, 0, n, label, plain, plain_numbers, logits_NL)
    scratch.damping_RL[0, label] = damping + moved
    scratch.gate_damping_RL[0, label] = gate_damping


@in_place
def _step_items(
    lines: Any,
    num_slots: Any,
    step: Any,
    curvature: Any,
    gate_step: Any,
    plain_residual: Any,
    plain_rate: Any,
    crosses: Any,
    n: Any,
) -> None:
    """Compute new weights and gates of slots and crosses."""
    num = num_slots + crosses.offsets_R1[n - crosses.start + 1] - crosses.offsets_R1[n - crosses.start]
    weights_K, gates_K, strengths_K = lines.weights_K, lines.gates_K, lines.strengths_K
    informations_K, new_weights_K, new_informations_K = (
        lines.informations_K,
        lines.new_weights_K,
        lines.new_informations_K,
    )
    for k in range(num):
        added = curvature * gates_K[k] * gates_K[k]
        information = informations_K[k] + (added if added > MIN_ADDED else MIN_ADDED)
        new_informations_K[k] = information if information < MAX_INFORMATION else MAX_INFORMATION
    for k in range(num):
        new_weights_K[k] = weights_K[k] + (0.0 + step * gates_K[k]) / (strengths_K[k] + new_informations_K[k])
    gate_informations_K, new_gate_informations_K = lines.gate_informations_K, lines.new_gate_informations_K
    for k in range(num):
        information = gate_informations_K[k] + curvature * weights_K[k] * weights_K[k]
        new_gate_informations_K[k] = information if information < MAX_INFORMATION else MAX_INFORMATION
    new_gates_K = lines.new_gates_K
    for k in range(num):
        gate = gates_K[k] + (0.0 + gate_step * weights_K[k]) / (GATE_PRIOR + new_gate_informations_K[k])
        gate = gate if gate > 0.0 else 0.0
        gate = gate if gate < MAX_GATE else MAX_GATE
        new_gates_K[k] = gate if curvature * weights_K[k] * weights_K[k] > 0.0 else gates_K[k]
    plain_weights_K, plain_squares_K = lines.plain_weights_K, lines.plain_squares_K
    square, slope = plain_residual * plain_residual, plain_rate * plain_residual
    for k in range(num_slots):
        plain_squares_K[k] += square
    for k in range(num_slots):
        plain_weights_K[k] += slope / (math.sqrt(plain_squares_K[k]) + PLAIN_EPS)


@in_place
def _count_gains(crosses: Any, arrays: Any, lines: Any, n: Any, num_slots: Any, residual: Any, curvature: Any) -> None:
    pairs_C, gains_P, parts_K = crosses.pairs_C, arrays.pair_gains_P, lines.parts_K
    first = crosses.offsets_R1[n - crosses.start]
    for c in range(crosses.offsets_R1[n - crosses.start + 1] - first):
        share = parts_K[num_slots + c]
        gains_P[np.uint64(pairs_C[first + c])] += residual * share + 0.5 * curvature * share * share


@in_place
def _scatter(batch: Any, crosses: Any, arrays: Any, lines: Any, n: Any, label: Any) -> None:
    """Write back what `_gather` took."""
    rows_S, wide_UW, rows_C, weights_Q2L = batch.rows_S, batch.wide_UW, crosses.rows_C, crosses.weights_Q2L
    weights_K, informations_K, places_K = lines.new_weights_K, lines.new_informations_K, lines.places_K
    plain_weights_K, plain_squares_K = lines.plain_weights_K, lines.plain_squares_K
    first, base, at = batch.offsets_N1[n], crosses.start, np.uint64(COLUMNS * label)
    num_slots = batch.offsets_N1[n + 1] - first
    for k in range(num_slots):
        u = np.uint64(rows_S[first + k])
        wide_UW[u, at + np.uint64(WEIGHT)] = weights_K[k]
        wide_UW[u, at + np.uint64(INFORMATION)] = informations_K[k]
        wide_UW[u, at + np.uint64(PLAIN_WEIGHT)] = plain_weights_K[k]
        wide_UW[u, at + np.uint64(PLAIN_SQUARES)] = plain_squares_K[k]
    first, at = crosses.offsets_R1[n - base], np.uint64(2 * label)
    num_crosses = crosses.offsets_R1[n - base + 1] - first
    for c in range(num_crosses):
        q, k = np.uint64(rows_C[first + c]), num_slots + c
        weights_Q2L[q, at] = weights_K[k]
        weights_Q2L[q, at + np.uint64(1)] = informations_K[k]
    gates_T, gate_informations_T = arrays.gates_LTB[label].reshape(-1), arrays.gate_information_LTB[label].reshape(-1)
    gates_K, gate_informations_K = lines.new_gates_K, lines.new_gate_informations_K
    for k in range(num_slots + num_crosses):
        place = np.uint64(places_K[k])
        gates_T[place], gate_informations_T[place] = gates_K[k], gate_informations_K[k]


@in_place
def _step_seen(
    batch: Any, arrays: Any, lines: Any, strengths: Any, n: Any, label: Any, step: Any, curvature: Any
) -> None:
    fields_S, first = batch.fields_S, batch.offsets_N1[n]
    weights_F2, informations_F2 = arrays.seen_weights_LF2[label], arrays.seen_information_LF2[label]
    seen_K, never_K = lines.seen_K, lines.never_K
    for k in range(batch.offsets_N1[n + 1] - first):
        f, x = np.uint64(fields_S[first + k]), seen_K[k]
        added = curvature * x * x
        if added > 0.0:
            information = min(informations_F2[f, 0] + added, MAX_SHARED_INFORMATION)
            informations_F2[f, 0] = information
            weights_F2[f, 0] += step * x / (strengths.seen + information)
        if never_K[k] > 0.0 and curvature > 0.0:
            information = min(informations_F2[f, 1] + curvature, MAX_SHARED_INFORMATION)
            informations_F2[f, 1] = information
            weights_F2[f, 1] += step / (strengths.seen + information)


@in_place
def _step_numbers(
    batch: Any,
    arrays: Any,
    lines: Any,
    strengths: Any,
    n: Any,
    label: Any,
    step: Any,
    curvature: Any,
    plain_residual: Any,
    plain_curvature: Any,
    weight: Any,
) -> None:
    x_X, moves_K = batch.x_NX[n], lines.seen_moves_K
    plain_informations_X = arrays.plain_number_information_LX[label]
    for k in range(len(x_X)):
        moves_K[k] = x_X[k] * x_X[k] / (strengths.number + plain_informations_X[k])
    most, moved = max(0.0, 0.25 * (weight - 1.0)), 0.0
    for k in range(len(x_X)):
        moved += moves_K[k]
    plain_step = plain_residual / (1.0 + most * moved)
    _step_weights(
        arrays.number_weights_LX[label], arrays.number_information_LX[label], x_X, step, curvature, strengths.number
    )
    _step_weights(
        arrays.plain_number_weights_LX[label], plain_informations_X, x_X, plain_step, plain_curvature, strengths.number
    )


@in_place
def _step_weights(weights_X: Any, informations_X: Any, x_X: Any, step: Any, curvature: Any, strength: Any) -> None:
    for k in range(len(x_X)):
        information = informations_X[k] + curvature * x_X[k] * x_X[k]
        informations_X[k] = information if information < MAX_SHARED_INFORMATION else MAX_SHARED_INFORMATION
    for k in range(len(x_X)):
        weight = weights_X[k] + (0.0 + step * x_X[k]) / (strength + informations_X[k])
        weights_X[k] = weight if curvature * x_X[k] * x_X[k] > 0.0 else weights_X[k]


@in_place
def _step_vectors(batch: Any, scratch: Any, lines: Any, n: Any, scale: Any, lr: Any, eps: Any) -> None:
    """Row-wise Adagrad that forgets, where rows have its state."""
    rows_S, values_UD, squares_U, sums_D = batch.rows_S, batch.values_UD, batch.squares_U, scratch.sums_RD[0]
    gradients_D, dim = lines.gradients_D, values_UD.shape[1]
    if not len(squares_U):
        return
    for s in range(batch.offsets_N1[n], batch.offsets_N1[n + 1]):
        u, total = np.uint64(rows_S[s]), 0.0
        values_D = values_UD[u]
        for d in range(dim):
            gradients_D[d] = 0.0 + scale * (sums_D[d] - values_D[d])
        for d in range(dim):
            total += gradients_D[d] * gradients_D[d]
        if total > 0.0:
            squares = squares_U[u] * (1.0 - 1 / SQUARES_MEMORY) + total / dim
            squares_U[u] = squares
            rate = lr / (math.sqrt(squares) + eps)
            for d in range(dim):
                values_D[d] += rate * gradients_D[d]


@in_place
def _count(batch: Any, crosses: Any, arrays: Any, lines: Any, n: Any) -> None:
    """Count the slots, and how often their ids were seen before."""
    rows_S, fields_S, counts_U, statistics_3F = batch.rows_S, batch.fields_S, batch.counts_U, arrays.seen_statistics_3F
    bits_K, first = lines.bits_K, batch.offsets_N1[n]
    for k in range(batch.offsets_N1[n + 1] - first):
        f, x = np.uint64(fields_S[first + k]), bits_K[k]
        count = statistics_3F[2, f] + 1.0
        count = count if count < MAX_COUNT else MAX_COUNT
        change = x - statistics_3F[0, f]
        mean = statistics_3F[0, f] + change / count
        variance = statistics_3F[1, f]
        statistics_3F[1, f] = variance + (change * (x - mean) - variance) / (count + SEEN_PRIOR)
        statistics_3F[0, f], statistics_3F[2, f] = mean, count
        counts_U[np.uint64(rows_S[first + k])] += 1
    count_totals(batch, crosses, arrays, n)
