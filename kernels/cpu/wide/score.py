"""Scores a sample: equal bit by bit to springtide_client.wide.score, whose sums run in the same order."""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.wide.arrays import in_place

WEIGHT, INFORMATION, PLAIN_WEIGHT, PLAIN_SQUARES = 0, 1, 2, 3
COLUMNS, NUM_BUCKETS, NUM_PARTS = 4, 12, 6
GATE_PRIOR = 2.0
MAX_SEEN_BITS = 15


class Strengths(NamedTuple):
    """How strongly weights are held at zero, by what they belong to; and the scale of the factorization machine."""

    first: float
    cross: float
    number: float
    seen: float
    factorized: float
    plain: float  # learning rate of the plain learner


@in_place
def strengths_of(arrays: Any, num_live: Any) -> Any:
    """From the mean numbers of slots so far, and the number of pairs that live."""
    samples, num_fields, num_pairs = arrays.slot_totals_4[0], len(arrays.numbers_F), len(arrays.pair_is_live_P)
    first, crossed = float(max(1, num_fields)), float(num_pairs)
    if samples > 0:
        first = max(1.0, arrays.slot_totals_4[1] / samples)
        crossed = arrays.slot_totals_4[2] / samples
    num_possible = num_fields * (num_fields - 1) // 2
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
def bucket_of(information: Any) -> Any:
    x, bucket = information * 4.0, 0
    while x >= 1.0 and bucket < NUM_BUCKETS - 1:
        x *= 0.5
        bucket += 1
    return bucket


@in_place
def bits_of_count(count: Any) -> Any:
    bits = 0
    while count > 0 and bits < MAX_SEEN_BITS:
        count >>= 1
        bits += 1
    return bits


@in_place
def find_rows(batch: Any, crosses: Any, scratch: Any, start: Any, stop: Any) -> None:
    """Give the rows of the chunk places of their own, and count how often it has each."""
    places_U, places_S, times_V, rows_S = scratch.places_U, scratch.places_S, scratch.times_V, batch.rows_S
    first_slot, num_rows = batch.offsets_N1[start], 0
    for s in range(first_slot, batch.offsets_N1[stop]):
        place = places_U[rows_S[s]]
        if place < 0:
            place = num_rows
            places_U[rows_S[s]] = place
            num_rows += 1
        places_S[s - first_slot] = place
        times_V[place] += 1
    places_Q, places_C, cross_times_V, rows_C = (
        scratch.places_Q,
        scratch.places_C,
        scratch.cross_times_V,
        crosses.rows_C,
    )
    first_cross, num_rows = crosses.offsets_R1[start - crosses.start], 0
    for c in range(first_cross, crosses.offsets_R1[stop - crosses.start]):
        place = places_Q[rows_C[c]]
        if place < 0:
            place = num_rows
            places_Q[rows_C[c]] = place
            num_rows += 1
        places_C[c - first_cross] = place
        cross_times_V[place] += 1


@in_place
def fetch_rows(batch: Any, crosses: Any, scratch: Any, start: Any, stop: Any) -> None:
    """Ask for the rows of samples start to stop, which the next chunk needs."""
    rows_S, wide_UW, values_UD, counts_U = batch.rows_S, batch.wide_UW, batch.values_UD, batch.counts_U
    places_U, squares_U = scratch.places_U, batch.squares_U
    width, dim, has_squares = np.uint64(wide_UW.shape[1]), np.uint64(values_UD.shape[1]), len(squares_U) > 0
    for s in range(batch.offsets_N1[start], batch.offsets_N1[stop]):
        u = np.uint64(rows_S[s])
        prefetch(wide_UW, u * width)
        prefetch(counts_U, u)
        prefetch(places_U, u)
        if has_squares:
            prefetch(squares_U, u)
        for d in range(np.uint64(0), dim, np.uint64(16)):
            prefetch(values_UD, u * dim + d)
    rows_C, weights_Q2L, places_Q = crosses.rows_C, crosses.weights_Q2L, scratch.places_Q
    cross_width = np.uint64(weights_Q2L.shape[1])
    for c in range(crosses.offsets_R1[start - crosses.start], crosses.offsets_R1[stop - crosses.start]):
        q = np.uint64(rows_C[c])
        prefetch(weights_Q2L, q * cross_width)
        prefetch(places_Q, q)


@in_place
def score_sample(
    batch: Any,
    crosses: Any,
    arrays: Any,
    scratch: Any,
    strengths: Any,
    n: Any,
    start: Any,
    stop: Any,
    logits_NL: Any,
) -> None:
    """Write the parts of the score, the logits, and how far a step would move them, of sample n of a chunk."""
    r, num_samples, num_fields = n - start, stop - start, len(arrays.numbers_F)
    first_slot, slots_from, slots_to = batch.offsets_N1[start], batch.offsets_N1[n], batch.offsets_N1[n + 1]
    base = crosses.start
    first_cross = crosses.offsets_R1[start - base]
    crosses_from, crosses_to = crosses.offsets_R1[n - base], crosses.offsets_R1[n - base + 1]
    rows_S, fields_S, wide_UW, counts_U = batch.rows_S, batch.fields_S, batch.wide_UW, batch.counts_U
    x_NX, rows_C, pairs_C, weights_Q2L = batch.x_NX, crosses.rows_C, crosses.pairs_C, crosses.weights_Q2L
    gates_LTB, gate_information_LTB = arrays.gates_LTB, arrays.gate_information_LTB
    seen_LF2, seen_information_LF2 = arrays.seen_weights_LF2, arrays.seen_information_LF2
    number_weights_LX, plain_number_weights_LX = arrays.number_weights_LX, arrays.plain_number_weights_LX
    number_information_LX, statistics_3F = arrays.number_information_LX, arrays.seen_statistics_3F
    seen_S, never_S, places_S, places_C = scratch.seen_S, scratch.never_S, scratch.places_S, scratch.places_C
    times_V, cross_times_V = scratch.times_V, scratch.cross_times_V
    buckets_SL, buckets_CL, parts_RLG = scratch.buckets_SL, scratch.buckets_CL, scratch.parts_RLG
    pairs = factorize(batch, scratch, r, slots_from, slots_to)
    for s in range(slots_from, slots_to):
        f = fields_S[s]
        bits = bits_of_count(counts_U[rows_S[s]])
        standard = (bits - statistics_3F[0, f]) / math.sqrt(statistics_3F[1, f] + 0.01)
        seen_S[s - first_slot] = min(max(standard, -3.0), 3.0)
        never_S[s - first_slot] = bits == 0
    for label in range(len(arrays.base_L)):
        at = COLUMNS * label
        summed, seen, plain, damping, gate_damping, moved = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for s in range(slots_from, slots_to):
            u, f, k = rows_S[s], fields_S[s], s - first_slot
            information = np.float64(wide_UW[u, at + INFORMATION])
            weight = np.float64(wide_UW[u, at + WEIGHT])
            b = bucket_of(information)
            buckets_SL[k, label] = b
            gate = gates_LTB[label, f, b]
            summed += gate * weight
            plain += np.float64(wide_UW[u, at + PLAIN_WEIGHT])
            x = seen_S[k]
            part = seen_LF2[label, f, 0] * x
            moved += x * x / (strengths.seen + seen_information_LF2[label, f, 0])
            if never_S[k]:
                part += seen_LF2[label, f, 1]
                moved += 1.0 / (strengths.seen + seen_information_LF2[label, f, 1])
            seen += part
            damping += times_V[places_S[k]] * gate * gate / (strengths.first + information)
            gate_damping += weight * weight / (GATE_PRIOR + gate_information_LTB[label, f, b])
        crossed = 0.0
        for c in range(crosses_from, crosses_to):
            q, f = rows_C[c], num_fields + pairs_C[c]
            weight = np.float64(weights_Q2L[q, 2 * label])
            information = np.float64(weights_Q2L[q, 2 * label + 1])
            b = bucket_of(information)
            buckets_CL[c - first_cross, label] = b
            gate = gates_LTB[label, f, b]
            crossed += gate * weight
            damping += cross_times_V[places_C[c - first_cross]] * gate * gate / (strengths.cross + information)
            gate_damping += weight * weight / (GATE_PRIOR + gate_information_LTB[label, f, b])
        numbers, plain_numbers = 0.0, 0.0
        for k in range(x_NX.shape[1]):
            x = x_NX[n, k]
            numbers += x * number_weights_LX[label, k]
            plain_numbers += x * plain_number_weights_LX[label, k]
            moved += x * x / (strengths.number + number_information_LX[label, k])
        parts_RLG[r, label, 0], parts_RLG[r, label, 1], parts_RLG[r, label, 2] = summed, crossed, numbers
        parts_RLG[r, label, 3], parts_RLG[r, label, 5] = pairs * strengths.factorized, seen
        parts_RLG[r, label, 4] = batch.net_NL[n, label]
        write_logits(arrays, scratch, r, n, label, plain, plain_numbers, logits_NL)
        scratch.damping_RL[r, label] = damping + num_samples * moved
        scratch.gate_damping_RL[r, label] = num_samples * gate_damping


@in_place
def write_logits(
    arrays: Any, scratch: Any, r: Any, n: Any, label: Any, plain: Any, plain_numbers: Any, logits_NL: Any
) -> None:
    """Add up the parts of sample n, the r-th of its chunk: logits of both learners, and their mixture."""
    parts_RLG = scratch.parts_RLG
    logit = arrays.base_L[label] + arrays.bias_L[label]
    for g in range(NUM_PARTS):
        logit += arrays.group_weights_LG[label, g] * parts_RLG[r, label, g]
    other = arrays.base_L[label] + arrays.plain_bias_L[label]
    other += arrays.plain_group_weights_L2[label, 0] * plain
    other += arrays.plain_group_weights_L2[label, 1] * plain_numbers
    scratch.plain_RL2[r, label, 0], scratch.plain_RL2[r, label, 1] = plain, plain_numbers
    scratch.logits_RL2[r, label, 0], scratch.logits_RL2[r, label, 1] = logit, other
    share = arrays.mixture_L[label]
    logits_NL[n, label] = share * logit + (1.0 - share) * other


@in_place
def factorize(batch: Any, scratch: Any, r: Any, slots_from: Any, slots_to: Any) -> Any:
    """Add up the vectors of a sample; return the sum of the dot products of all pairs."""
    sums_D, squares_D, values_UD, rows_S = scratch.sums_RD[r], scratch.squares_D, batch.values_UD, batch.rows_S
    dim = len(sums_D)
    for d in range(dim):
        sums_D[d], squares_D[d] = 0.0, 0.0
    for s in range(slots_from, slots_to):
        u = rows_S[s]
        for d in range(dim):
            v = np.float64(values_UD[u, d])
            sums_D[d] += v
            squares_D[d] += v * v
    pairs = 0.0
    for d in range(dim):
        pairs += sums_D[d] * sums_D[d] - squares_D[d]
    return 0.5 * pairs
