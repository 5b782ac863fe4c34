"""Scores a sample: equal bit by bit to springtide_client.wide.score, whose sums run in the same order.

What a sample touches is gathered into short arrays and worked on there, eight numbers at once.
"""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.wide.arrays import CrossBatch, WideBatch, WidePass, in_place, new_pass
from springtide.kernels.njit import njit
from springtide_client.wide.parameters import WideParameters

WEIGHT, INFORMATION, PLAIN_WEIGHT, PLAIN_SQUARES = 0, 1, 2, 3
COLUMNS, NUM_BUCKETS, NUM_PARTS = 4, 12, 6
GATE_PRIOR = 2.0
MAX_SEEN_BITS = 15
# exponents of float64: bucket 0 ends where 4 H is 1; a count of 1 has one bit
EXPONENT_AT, EXPONENT_OF_A_QUARTER, EXPONENT_OF_A_HALF = 52, 1020, 1022


class Strengths(NamedTuple):
    """How strongly weights are held at zero, by what they belong to; and the scale of the factorization machine."""

    first: float
    cross: float
    number: float
    seen: float
    factorized: float
    plain: float  # learning rate of the plain learner


@in_place
def num_live_pairs(arrays: WideParameters) -> Any:
    """Return how many pairs of fields are crossed."""
    num_live, live_P = 0, arrays.pair_is_live_P
    for p in range(len(live_P)):
        num_live += live_P[p]
    return num_live


@in_place
def strengths_of(arrays: WideParameters, num_live: int) -> Strengths:
    """From the mean numbers of slots so far, and the number of pairs that live."""
    samples, num_fields, num_pairs = arrays.slot_totals_4[0], len(arrays.numbers_F), len(arrays.pair_is_live_P)
    first, crossed = float(max(1, num_fields)), float(num_pairs)
    if samples > 0:
        first = max(1.0, arrays.slot_totals_4[1] / samples)
        crossed = arrays.slot_totals_4[2] / samples
    num_bias = arrays.num_bias_1[0]
    num_possible = num_fields * (num_fields - 1) // 2 - (num_fields - num_bias) * num_bias
    if num_pairs < num_possible:  # of many fields not all pairs are tried
        crossed *= num_pairs / num_possible
    ratio, live = 6.0 / first, max(num_live / max(1, num_pairs), 0.1)
    return Strengths(
        max(0.5 * first, 3.0),
        max(1.5 * crossed, 3.0) * live,
        first,
        5.0 * first,
        ratio * math.sqrt(ratio),
        0.3 / math.sqrt(first),
    )


@in_place
def fetch_rows(data: WidePass, n: int) -> None:
    """Ask for the rows of sample n, before its turn."""
    batch, crosses = data.batch, data.crosses
    rows_S, states_US, values_UD, counts_U = batch.rows_S, batch.states_US, batch.values_UD, batch.counts_U
    has_squares, wide_from = batch.has_squares, np.uint64(batch.wide_from)
    width, dim = np.uint64(states_US.shape[1]), np.uint64(values_UD.shape[1])
    for s in range(batch.offsets_N1[n], batch.offsets_N1[n + 1]):
        u = np.uint64(rows_S[s])
        prefetch(states_US, u * width + wide_from)
        prefetch(counts_U, u)
        if has_squares:
            prefetch(states_US, u * width)
        for d in range(np.uint64(0), dim, np.uint64(16)):
            prefetch(values_UD, u * dim + d)
    rows_C, weights_Q2L = crosses.rows_C, crosses.weights_Q2L
    cross_width = np.uint64(weights_Q2L.shape[1])
    for c in range(crosses.offsets_R1[n - crosses.start], crosses.offsets_R1[n - crosses.start + 1]):
        prefetch(weights_Q2L, np.uint64(rows_C[c]) * cross_width)


@in_place
def sizes_of(data: WidePass, n: int) -> tuple[int, int]:
    """Return how many slots sample n has, and how many slots and crosses."""
    batch, crosses = data.batch, data.crosses
    num_slots = batch.offsets_N1[n + 1] - batch.offsets_N1[n]
    r = n - crosses.start
    return num_slots, num_slots + crosses.offsets_R1[r + 1] - crosses.offsets_R1[r]


@in_place
def find_repeats(data: WidePass, n: int) -> Any:
    """Find items that have a row in common; return whether there may be such, or gates in common.

    There are none where no field of the sample has two slots, and no pair of fields two crosses. With weights there
    may be such always.
    """
    batch, crosses, work = data.batch, data.crosses, data.work
    fields_S, pairs_C, r, repeated = batch.fields_S, crosses.pairs_C, n - crosses.start, len(batch.weights_S)
    for s in range(batch.offsets_N1[n] + 1, batch.offsets_N1[n + 1]):
        repeated += fields_S[s] == fields_S[s - 1]
    for c in range(crosses.offsets_R1[r] + 1, crosses.offsets_R1[r + 1]):
        repeated += pairs_C[c] == pairs_C[c - 1]
    num_slots, num = sizes_of(data, n)
    times_K, first_K, x_K = work.times_K, work.first_K, work.x_K
    if repeated:
        for k in range(num):
            times_K[k] = 1.0
        if len(batch.weights_S) > 0:
            for k in range(num):
                times_K[k] = x_K[k]
        find_first(batch.rows_S[batch.offsets_N1[n] :], work.first_of_U, first_K, 0, num_slots)
        find_first(crosses.rows_C[crosses.offsets_R1[r] :], work.first_of_Q, first_K, num_slots, num)
        for k in range(num):
            if first_K[k] < k:
                times_K[first_K[k]] += x_K[k]  # 1 without weights
        for k in range(num):
            times_K[k] = times_K[first_K[k]]
    return repeated > 0


@in_place
def find_first(places_K: Any, first_of: Any, first_K: Any, start: int, stop: int) -> None:
    """Write into first_K, from `start` to `stop`, the first item that has the same place as each."""
    for k in range(start, stop):
        place = np.uint64(places_K[k - start])
        if first_of[place] < 0:
            first_of[place] = k
        first_K[k] = first_of[place]
    for k in range(start, stop):
        first_of[np.uint64(places_K[k - start])] = -1


@in_place
def take_weights(data: WidePass, n: int) -> Any:
    """Take the weights of sample n's items; return the largest square of one, at least 1."""
    batch, crosses, x_K, largest = data.batch, data.crosses, data.work.x_K, 1.0
    if len(batch.weights_S) == 0:
        return largest
    num_slots, num = sizes_of(data, n)
    first, first_cross = batch.offsets_N1[n], crosses.offsets_R1[n - crosses.start]
    for k in range(num_slots):
        x_K[k] = batch.weights_S[first + k]
    for c in range(num - num_slots):
        x_K[num_slots + c] = crosses.weights_C[first_cross + c]
    for k in range(num):
        largest = max(largest, x_K[k] * x_K[k])
    return largest


@in_place
def sum_squared_weights(data: WidePass, n: int) -> None:
    """Add up the squared weights of slots with a row in common, at the first of them, in `added_K`."""
    work, (num_slots, _) = data.work, sizes_of(data, n)
    first_K, x_K, energies_K = work.first_K, work.x_K, work.added_K
    for k in range(num_slots):
        energies_K[k] = 0.0
    for k in range(num_slots):
        energies_K[first_K[k]] += x_K[k] * x_K[k]


@in_place
def standardize_counts(data: WidePass, n: int) -> None:
    """Say of each slot how often its id was seen before, beside the other ids of its field."""
    batch, arrays, work = data.batch, data.arrays, data.work
    rows_S, fields_S, counts_U, statistics_3F = batch.rows_S, batch.fields_S, batch.counts_U, arrays.seen_statistics_3F
    bits_K, seen_K, never_K, moves_K = work.bits_K, work.seen_K, work.never_K, work.moves_K
    first = batch.offsets_N1[n]
    num_slots = batch.offsets_N1[n + 1] - first
    counts_K, count_bits_K = work.informations_K, work.information_bits_K
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
    if len(batch.weights_S) > 0:
        for k in range(num_slots):
            seen_K[k] *= work.x_K[k]


@in_place
def factorize(data: WidePass, n: int) -> Any:
    """Add up the vectors of sample n, without those of bias; return the sum of the dot products of all pairs."""
    batch, work = data.batch, data.work
    sums_D, squares_D, values_UD, rows_S = work.sums_D, work.squares_D, batch.values_UD, batch.rows_S
    dim = len(sums_D)
    for d in range(dim):
        sums_D[d], squares_D[d] = 0.0, 0.0
    if len(batch.weights_S) > 0:
        _add_weighted_vectors(data, n)
    else:
        for s in range(batch.offsets_N1[n], batch.offsets_N1[n + 1] - data.arrays.num_bias_1[0]):
            u = rows_S[s]
            for d in range(dim):
                v = np.float64(values_UD[u, d])
                sums_D[d] += v
                squares_D[d] += v * v
    pairs = 0.0
    for d in range(dim):
        pairs += sums_D[d] * sums_D[d] - squares_D[d]
    return 0.5 * pairs


@in_place
def _add_weighted_vectors(data: WidePass, n: int) -> None:
    batch, work = data.batch, data.work
    sums_D, squares_D, values_UD, rows_S = work.sums_D, work.squares_D, batch.values_UD, batch.rows_S
    for s in range(batch.offsets_N1[n], batch.offsets_N1[n + 1] - data.arrays.num_bias_1[0]):
        u, x = rows_S[s], batch.weights_S[s]
        for d in range(len(sums_D)):
            v = np.float64(values_UD[u, d]) * x
            sums_D[d] += v
            squares_D[d] += v * v


@in_place
def gather(data: WidePass, strengths: Strengths, n: int, label: int) -> None:
    """Take weights, informations and gates of the slots and crosses."""
    batch, crosses, arrays, work = data.batch, data.crosses, data.arrays, data.work
    rows_S, fields_S, states_US = batch.rows_S, batch.fields_S, batch.states_US
    rows_C, pairs_C, weights_Q2L = crosses.rows_C, crosses.pairs_C, crosses.weights_Q2L
    weights_K, informations_K, strengths_K = work.weights_K, work.informations_K, work.strengths_K
    plain_weights_K, plain_squares_K, places_K = work.plain_weights_K, work.plain_squares_K, work.places_K
    num_fields, first, at = len(arrays.numbers_F), batch.offsets_N1[n], np.uint64(batch.wide_from + COLUMNS * label)
    num_slots, num = sizes_of(data, n)
    for k in range(num_slots):
        u = np.uint64(rows_S[first + k])
        weights_K[k] = states_US[u, at + np.uint64(WEIGHT)]
        informations_K[k] = states_US[u, at + np.uint64(INFORMATION)]
        plain_weights_K[k] = states_US[u, at + np.uint64(PLAIN_WEIGHT)]
        plain_squares_K[k] = states_US[u, at + np.uint64(PLAIN_SQUARES)]
        places_K[k] = fields_S[first + k] * NUM_BUCKETS
        strengths_K[k] = strengths.first
    first, at = crosses.offsets_R1[n - crosses.start], np.uint64(2 * label)
    for c in range(num - num_slots):
        q, k = np.uint64(rows_C[first + c]), num_slots + c
        weights_K[k] = weights_Q2L[q, at]
        informations_K[k] = weights_Q2L[q, at + np.uint64(1)]
        places_K[k] = (num_fields + pairs_C[first + c]) * NUM_BUCKETS
        strengths_K[k] = strengths.cross
    bits_K = work.information_bits_K
    for k in range(num):
        bucket = (bits_K[k] >> EXPONENT_AT) - EXPONENT_OF_A_QUARTER
        bucket = bucket if bucket > 0 else 0
        places_K[k] += bucket if bucket < NUM_BUCKETS - 1 else NUM_BUCKETS - 1
    gates_T, gate_informations_T = arrays.gates_LTB[label].reshape(-1), arrays.gate_information_LTB[label].reshape(-1)
    gates_K, gate_informations_K = work.gates_K, work.gate_informations_K
    for k in range(num):
        place = np.uint64(places_K[k])
        gates_K[k], gate_informations_K[k] = gates_T[place], gate_informations_T[place]


@in_place
def _weigh(data: WidePass, n: int, label: int) -> None:
    """Multiply what items add, and how far steps move that, by their weights."""
    batch, work, (num_slots, num) = data.batch, data.work, sizes_of(data, n)
    parts_K, moves_K, gate_moves_K, x_K = work.parts_K, work.moves_K, work.gate_moves_K, work.x_K
    for k in range(num):
        parts_K[k] *= x_K[k]
        moves_K[k] *= x_K[k]
        gate_moves_K[k] *= x_K[k] * x_K[k]
    never_K, seen_parts_K, never_moves_K = work.never_K, work.seen_parts_K, work.never_moves_K
    seen_F2, first = data.arrays.seen_weights_LF2[label], batch.offsets_N1[n]
    for k in range(num_slots):
        f = np.uint64(batch.fields_S[first + k])
        never = seen_F2[f, 1] * x_K[k] if never_K[k] > 0.0 else 0.0
        seen_parts_K[k] = seen_F2[f, 0] * work.seen_K[k] + never
        never_moves_K[k] *= x_K[k] * x_K[k]


@in_place
def _weighted_plain(data: WidePass, n: int) -> Any:
    """Return what the plain learner's weights add up to."""
    work, (num_slots, _) = data.work, sizes_of(data, n)
    plain = 0.0
    for k in range(num_slots):
        plain += work.plain_weights_K[k] * work.x_K[k]
    return plain


@in_place
def score_label(data: WidePass, strengths: Strengths, n: int, has_repeats: bool, label: int, pairs: float) -> Any:
    """Write the parts of the score and the mixed logit; return both learners' logits, and how far a step moves them.

    That is for the weights of a step, and for its gates. `pairs`: of `factorize`.
    """
    batch, arrays, work = data.batch, data.arrays, data.work
    fields_S, first = batch.fields_S, batch.offsets_N1[n]
    num_slots, num = sizes_of(data, n)
    weights_K, gates_K, parts_K, moves_K = work.weights_K, work.gates_K, work.parts_K, work.moves_K
    informations_K, strengths_K, times_K = work.informations_K, work.strengths_K, work.times_K
    gate_moves_K, gate_informations_K = work.gate_moves_K, work.gate_informations_K
    for k in range(num):
        parts_K[k] = gates_K[k] * weights_K[k]
    for k in range(num):
        moves_K[k] = gates_K[k] * gates_K[k] / (strengths_K[k] + informations_K[k])
    if has_repeats:
        for k in range(num):
            moves_K[k] = times_K[k] * gates_K[k] * gates_K[k] / (strengths_K[k] + informations_K[k])
    for k in range(num):
        gate_moves_K[k] = weights_K[k] * weights_K[k] / (GATE_PRIOR + gate_informations_K[k])
    seen_F2, seen_informations_F2 = arrays.seen_weights_LF2[label], arrays.seen_information_LF2[label]
    seen_K, never_K, seen_parts_K = work.seen_K, work.never_K, work.seen_parts_K
    seen_moves_K, never_moves_K = work.seen_moves_K, work.never_moves_K
    for k in range(num_slots):
        f, x = np.uint64(fields_S[first + k]), seen_K[k]
        part = seen_F2[f, 0] * x
        seen_parts_K[k] = part + seen_F2[f, 1] if never_K[k] > 0.0 else part
        seen_moves_K[k] = x * x / (strengths.seen + seen_informations_F2[f, 0])
        never_moves_K[k] = never_K[k] / (strengths.seen + seen_informations_F2[f, 1])
    is_weighted = len(batch.weights_S) > 0
    if is_weighted:
        _weigh(data, n, label)
    summed, seen, plain, damping, gate_damping, moved = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    plain_weights_K = work.plain_weights_K
    for k in range(num_slots):
        summed += parts_K[k]
        plain += plain_weights_K[k]
        seen += seen_parts_K[k]
        damping += moves_K[k]
        gate_damping += gate_moves_K[k]
        moved += seen_moves_K[k]
        moved += never_moves_K[k]  # 0 changes nothing: the sum is not -0
    if is_weighted:
        plain = _weighted_plain(data, n)
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
    parts_G, plain_parts_G = work.parts_G, work.plain_parts_G
    parts_G[0], parts_G[1], parts_G[2] = summed, crossed, numbers
    parts_G[3], parts_G[4], parts_G[5] = pairs * strengths.factorized, batch.net_NL[n, label], seen
    plain_parts_G[0], plain_parts_G[1] = plain, plain_numbers
    logit = arrays.base_L[label] + arrays.bias_L[label]
    for g in range(NUM_PARTS):
        logit += arrays.group_weights_LG[label, g] * parts_G[g]
    plain_logit = arrays.base_L[label] + arrays.plain_bias_L[label]
    plain_logit += arrays.plain_group_weights_L2[label, 0] * plain
    plain_logit += arrays.plain_group_weights_L2[label, 1] * plain_numbers
    share = arrays.mixture_L[label]
    data.logits_NL[n, label] = share * logit + (1.0 - share) * plain_logit
    return logit, plain_logit, damping + moved, gate_damping


@njit(nogil=True, cache=True)
def score_samples(batch: WideBatch, crosses: CrossBatch, arrays: WideParameters, logits_NL: Any) -> None:
    """Write the logits, float64 (N, L), by weights that stay as they are."""
    _score_samples(new_pass(batch, crosses, arrays, logits_NL))


@in_place
def _score_samples(data: WidePass) -> None:
    strengths, crosses = strengths_of(data.arrays, num_live_pairs(data.arrays)), data.crosses
    for n in range(crosses.start, crosses.stop):
        score_sample(data, strengths, n)


@in_place
def score_sample(data: WidePass, strengths: Strengths, n: int) -> None:
    """Write the logits of sample n by weights that stay as they are."""
    take_weights(data, n)
    standardize_counts(data, n)
    pairs = factorize(data, n)
    for label in range(len(data.arrays.base_L)):
        gather(data, strengths, n, label)
        score_label(data, strengths, n, False, label, pairs)  # rows that repeat matter to steps only
