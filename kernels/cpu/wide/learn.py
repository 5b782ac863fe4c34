"""Learns from a chunk of scored samples: everything is added up first, then one step is made with all of it."""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any

import numpy as np

from springtide.kernels.cpu.wide.arrays import in_place
from springtide.kernels.cpu.wide.score import COLUMNS, NUM_PARTS, WEIGHT

MIN_CURVATURE, MIN_ADDED = 1e-4, 1e-6
MAX_WEIGHT = 1000.0
MEMORY = 1e6  # samples that the base rate remembers
PRIOR_CLICKS, PRIOR_OTHERS = 1.0, 3.0  # as the parameters begin
MIXTURE_RATE, MAX_LOSS_DIFFERENCE, MIN_PROBABILITY = 0.1, 100.0, 1e-9


@in_place
def sigmoid(z: Any) -> Any:
    return 1.0 / (1.0 + math.exp(-z)) if z > -700.0 else 0.0


@in_place
def add_sample(
    batch: Any,
    crosses: Any,
    arrays: Any,
    scratch: Any,
    strengths: Any,
    n: Any,
    start: Any,
    num_samples: Any,
    errors_NL: Any,
) -> None:
    """Add what sample n asks for to the sums of its chunk of `num_samples`."""
    r, base, num_fields = n - start, crosses.start, len(arrays.numbers_F)
    first_slot, slots_from, slots_to = batch.offsets_N1[start], batch.offsets_N1[n], batch.offsets_N1[n + 1]
    first_cross = crosses.offsets_R1[start - base]
    crosses_from, crosses_to = crosses.offsets_R1[n - base], crosses.offsets_R1[n - base + 1]
    # a sample of enormous weight must not make a row useless for good
    whole_weight, factorized = min(np.float64(batch.weights_N[n]), MAX_WEIGHT), 0.0
    rows_S, x_NX, values_UD = batch.rows_S, batch.x_NX, batch.values_UD
    labels_NL = batch.labels_NL
    rows_C, pairs_C, weights_Q2L = crosses.rows_C, crosses.pairs_C, crosses.weights_Q2L
    plain_slopes_VL, buckets_CL, cross_slopes_VL = scratch.plain_slopes_VL, scratch.buckets_CL, scratch.cross_slopes_VL
    places_S, places_C = scratch.places_S, scratch.places_C
    cross_added_VL, gate_slopes_LTB, gate_added_LTB = (
        scratch.cross_added_VL,
        scratch.gate_slopes_LTB,
        scratch.gate_added_LTB,
    )
    number_slopes_LX, number_added_LX, plain_number_slopes_LX = (
        scratch.number_slopes_LX,
        scratch.number_added_LX,
        scratch.plain_number_slopes_LX,
    )
    plain_number_added_LX, gradients_VD = scratch.plain_number_added_LX, scratch.gradients_VD
    gates_LTB, pair_gains_P = arrays.gates_LTB, arrays.pair_gains_P
    plain_number_information_LX = arrays.plain_number_information_LX
    for label in range(len(arrays.base_L)):
        errors_NL[n, label] = 0.0
        y = np.float64(labels_NL[n, label])
        logit, other = scratch.logits_RL2[r, label, 0], scratch.logits_RL2[r, label, 1]
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
        # a sample of weight 1,000 must not overshoot 1,000 times as far: 1/4 is the largest curvature on the way
        most = max(curvature, 0.25 * (whole_weight - 1.0))
        step = residual / (1.0 + most * scratch.damping_RL[r, label])
        gate_step = residual / (1.0 + most * scratch.gate_damping_RL[r, label])
        plain_most, moved = max(0.0, 0.25 * (whole_weight - 1.0)), 0.0
        for k in range(x_NX.shape[1]):
            moved += x_NX[n, k] * x_NX[n, k] / (strengths.number + plain_number_information_LX[label, k])
        number_step = plain_residual / (1.0 + plain_most * moved)
        factorized += step
        _add_slots(batch, arrays, scratch, label, first_slot, slots_from, slots_to, step, curvature, gate_step)
        for s in range(slots_from, slots_to):
            plain_slopes_VL[places_S[s - first_slot], label] += plain_residual
        pair, share = -1, 0.0
        for c in range(crosses_from, crosses_to):
            q_, p_ = rows_C[c], pairs_C[c]
            b = buckets_CL[c - first_cross, label]
            gate, weight = gates_LTB[label, num_fields + p_, b], np.float64(weights_Q2L[q_, 2 * label])
            if p_ != pair:
                if pair >= 0:
                    pair_gains_P[pair] += residual * share + 0.5 * curvature * share * share
                pair, share = p_, 0.0
            share += gate * weight
            place = places_C[c - first_cross]
            cross_slopes_VL[place, label] += step * gate
            cross_added_VL[place, label] += max(curvature * gate * gate, MIN_ADDED)
            gate_slopes_LTB[label, num_fields + p_, b] += gate_step * weight
            gate_added_LTB[label, num_fields + p_, b] += curvature * weight * weight
        if pair >= 0:
            pair_gains_P[pair] += residual * share + 0.5 * curvature * share * share
        for k in range(x_NX.shape[1]):
            x = x_NX[n, k]
            number_slopes_LX[label, k] += step * x
            number_added_LX[label, k] += curvature * x * x
            plain_number_slopes_LX[label, k] += number_step * x
            plain_number_added_LX[label, k] += plain_curvature * x * x
        add_groups(
            arrays, scratch, r, num_samples, label, whole_weight, residual, curvature, plain_residual, plain_curvature
        )
        mix_and_count(arrays, label, y, whole_weight, p, q)
    if factorized != 0.0:
        scale, sums_RD = factorized * strengths.factorized, scratch.sums_RD
        for s in range(slots_from, slots_to):
            u, place = rows_S[s], places_S[s - first_slot]
            for d in range(sums_RD.shape[1]):
                gradients_VD[place, d] += scale * (sums_RD[r, d] - values_UD[u, d])


@in_place
def _add_slots(
    batch: Any,
    arrays: Any,
    scratch: Any,
    label: Any,
    first_slot: Any,
    slots_from: Any,
    slots_to: Any,
    step: Any,
    curvature: Any,
    gate_step: Any,
) -> None:
    rows_S, fields_S, wide_UW = batch.rows_S, batch.fields_S, batch.wide_UW
    gate_slopes_LTB, gate_added_LTB, buckets_SL = scratch.gate_slopes_LTB, scratch.gate_added_LTB, scratch.buckets_SL
    slopes_VL, added_VL, seen_S = scratch.slopes_VL, scratch.added_VL, scratch.seen_S
    never_S, seen_slopes_LF2, seen_added_LF2 = scratch.never_S, scratch.seen_slopes_LF2, scratch.seen_added_LF2
    gates_LTB, places_S = arrays.gates_LTB, scratch.places_S
    for s in range(slots_from, slots_to):
        u, f, k = rows_S[s], fields_S[s], s - first_slot
        b, weight = buckets_SL[k, label], np.float64(wide_UW[u, COLUMNS * label + WEIGHT])
        gate = gates_LTB[label, f, b]
        place = places_S[k]
        slopes_VL[place, label] += step * gate
        added_VL[place, label] += max(curvature * gate * gate, MIN_ADDED)
        gate_slopes_LTB[label, f, b] += gate_step * weight
        gate_added_LTB[label, f, b] += curvature * weight * weight
        x = seen_S[k]
        seen_slopes_LF2[label, f, 0] += step * x
        seen_added_LF2[label, f, 0] += curvature * x * x
        if never_S[k]:
            seen_slopes_LF2[label, f, 1] += step
            seen_added_LF2[label, f, 1] += curvature


@in_place
def add_groups(
    arrays: Any,
    scratch: Any,
    r: Any,
    num_samples: Any,
    label: Any,
    weight: Any,
    residual: Any,
    curvature: Any,
    plain_residual: Any,
    plain_curvature: Any,
) -> None:
    most = max(0.0, 0.25 * (weight - 1.0))
    biases_L4 = scratch.biases_L4
    biases_L4[label, 0] += residual / (1.0 + most / arrays.bias_information_L[label])
    biases_L4[label, 1] += curvature
    biases_L4[label, 2] += plain_residual / (1.0 + most / arrays.plain_bias_information_L[label])
    biases_L4[label, 3] += plain_curvature
    parts_RLG, plain_RL2 = scratch.parts_RLG, scratch.plain_RL2
    information_LG, plain_information_L2 = arrays.group_information_LG, arrays.plain_group_information_L2
    slopes_LG, added_LG = scratch.group_slopes_LG, scratch.group_added_LG
    plain_slopes_L2, plain_added_L2 = scratch.plain_group_slopes_L2, scratch.plain_group_added_L2
    moved, plain_moved = 0.0, 0.0
    for g in range(NUM_PARTS):
        moved += parts_RLG[r, label, g] * parts_RLG[r, label, g] / information_LG[label, g]
    for g in range(2):
        plain_moved += plain_RL2[r, label, g] * plain_RL2[r, label, g] / plain_information_L2[label, g]
    step = residual / (1.0 + max(curvature, most) * num_samples * moved)
    plain_step = plain_residual / (1.0 + max(plain_curvature, most) * num_samples * plain_moved)
    for g in range(NUM_PARTS):
        slopes_LG[label, g] += step * parts_RLG[r, label, g]
        added_LG[label, g] += curvature * parts_RLG[r, label, g] * parts_RLG[r, label, g]
    for g in range(2):
        plain_slopes_L2[label, g] += plain_step * plain_RL2[r, label, g]
        plain_added_L2[label, g] += plain_curvature * plain_RL2[r, label, g] * plain_RL2[r, label, g]


@in_place
def mix_and_count(arrays: Any, label: Any, y: Any, weight: Any, p: Any, q: Any) -> None:
    """Compare both learners by their losses, and count the label."""
    loss = -math.log(max(p if y > 0.5 else 1.0 - p, MIN_PROBABILITY))
    plain_loss = -math.log(max(q if y > 0.5 else 1.0 - q, MIN_PROBABILITY))
    difference = arrays.loss_difference_L[label] + weight * (plain_loss - loss)
    difference = min(max(difference, -MAX_LOSS_DIFFERENCE), MAX_LOSS_DIFFERENCE)
    arrays.loss_difference_L[label] = difference
    arrays.mixture_L[label] = 1.0 / (1.0 + math.exp(-MIXTURE_RATE * difference))
    clicks, samples = arrays.clicks_L[label] + weight * y, arrays.samples_L[label] + weight
    if samples > MEMORY:
        clicks, samples = clicks * MEMORY / samples, MEMORY
    # the samples that stood for what is not known yet are never forgotten: a rate of 0 or 1 has no logit
    clicks = max(min(clicks, samples - PRIOR_OTHERS), PRIOR_CLICKS)
    arrays.clicks_L[label], arrays.samples_L[label] = clicks, samples
    arrays.base_L[label] = math.log(clicks / (samples - clicks))
