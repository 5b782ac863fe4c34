"""What the in-order pass reads and writes. Field for field, `WideArrays` is springtide_client's WideParameters."""

# N samples, S slots, C crosses of all samples, U rows, Q rows of crosses, D dimension, L labels, W columns of the wide
# part, F fields, P pairs of fields, T types of slots (F + P), B buckets, X numbers of a sample, G parts of a score
from typing import Any, NamedTuple

import numpy as np
from numba import njit

# Numba counts references to every array of a tuple at each call; what only writes into arrays needs none of that
in_place = njit(nogil=True, cache=True, _nrt=False)


class WideArrays(NamedTuple):
    """The wide part's own arrays, written in place: springtide_client.wide.parameters."""

    num_samples_1: Any
    numbers_F: Any
    pair_fields_P2: Any
    pair_is_live_P: Any
    pair_gains_P: Any
    slot_totals_4: Any
    number_statistics_3D: Any
    seen_statistics_3F: Any
    clicks_L: Any
    samples_L: Any
    base_L: Any
    bias_L: Any
    bias_information_L: Any
    group_weights_LG: Any
    group_information_LG: Any
    gates_LTB: Any
    gate_information_LTB: Any
    number_weights_LX: Any
    number_information_LX: Any
    seen_weights_LF2: Any
    seen_information_LF2: Any
    plain_bias_L: Any
    plain_bias_information_L: Any
    plain_group_weights_L2: Any
    plain_group_information_L2: Any
    plain_number_weights_LX: Any
    plain_number_information_LX: Any
    loss_difference_L: Any
    mixture_L: Any


class WideBatch(NamedTuple):
    """A batch: its samples, and the rows that its slots refer to, which are written in place."""

    rows_S: Any  # int64, the row of each slot
    fields_S: Any  # int64
    offsets_N1: Any  # int64, the slots of sample n are offsets_N1[n] to offsets_N1[n + 1]
    x_NX: Any  # float64
    net_NL: Any  # float32, the deep net's logits
    labels_NL: Any  # float32; NaN: masked
    weights_N: Any  # float32
    values_UD: Any  # float32
    squares_U: Any  # float32, summed squared gradients of row-wise Adagrad; length 0: vectors are not stepped
    wide_UW: Any  # float32
    counts_U: Any  # int64


class CrossBatch(NamedTuple):
    """The crosses of samples start to stop of a batch, and their rows, which are written in place."""

    start: int
    stop: int
    rows_C: Any  # int64, the row of each cross
    pairs_C: Any  # int64
    offsets_R1: Any  # int64, from `start` on
    potential_N: Any  # int64, of every sample of the batch: its crosses if all pairs lived
    weights_Q2L: Any  # float32: weight and information of label 0, then of label 1, ...


class Scratch(NamedTuple):
    """What a chunk of samples adds up before anything is written; zero between two chunks. R samples of the chunk."""

    places_U: Any  # int32, the place of a row among those of the chunk; -1: not in it
    places_Q: Any
    places_S: Any  # of the rows of the chunk's slots; axis V: the rows of the chunk, as they come
    places_C: Any
    times_V: Any
    slopes_VL: Any
    added_VL: Any
    plain_slopes_VL: Any
    gradients_VD: Any
    cross_times_V: Any
    cross_slopes_VL: Any
    cross_added_VL: Any
    gate_slopes_LTB: Any
    gate_added_LTB: Any
    number_slopes_LX: Any
    number_added_LX: Any
    seen_slopes_LF2: Any
    seen_added_LF2: Any
    plain_number_slopes_LX: Any
    plain_number_added_LX: Any
    group_slopes_LG: Any
    group_added_LG: Any
    plain_group_slopes_L2: Any
    plain_group_added_L2: Any
    biases_L4: Any  # slope and information of the bias, then of the plain one
    parts_RLG: Any
    plain_RL2: Any
    logits_RL2: Any  # of the learner with everything, of the plain one
    damping_RL: Any
    gate_damping_RL: Any
    sums_RD: Any
    squares_D: Any
    seen_S: Any  # by slot of the chunk
    never_S: Any
    buckets_SL: Any
    buckets_CL: Any


def new_scratch(batch: WideBatch, crosses: CrossBatch, arrays: WideArrays, chunk: int) -> Scratch:
    """Return zeros, for chunks of so many samples."""
    num_labels, dim, num_fields = len(arrays.base_L), batch.values_UD.shape[1], len(arrays.numbers_F)
    gates, numbers = arrays.gates_LTB.shape, arrays.number_weights_LX.shape
    most_slots = _most_in_chunk(batch.offsets_N1[crosses.start : crosses.stop + 1], chunk)
    most_crosses = _most_in_chunk(crosses.offsets_R1, chunk)
    by_slot, by_cross = (most_slots, num_labels), (most_crosses, num_labels)
    zeros = np.zeros
    return Scratch(
        np.full(len(batch.values_UD), -1, np.int32),
        np.full(len(crosses.weights_Q2L), -1, np.int32),
        zeros(most_slots, np.int64),
        zeros(most_crosses, np.int64),
        zeros(most_slots, np.int64),
        zeros(by_slot),
        zeros(by_slot),
        zeros(by_slot),
        zeros((most_slots, dim)),
        zeros(most_crosses, np.int64),
        zeros(by_cross),
        zeros(by_cross),
        zeros(gates),
        zeros(gates),
        zeros(numbers),
        zeros(numbers),
        zeros((num_labels, num_fields, 2)),
        zeros((num_labels, num_fields, 2)),
        zeros(numbers),
        zeros(numbers),
        zeros((num_labels, 6)),
        zeros((num_labels, 6)),
        zeros((num_labels, 2)),
        zeros((num_labels, 2)),
        zeros((num_labels, 4)),
        zeros((chunk, num_labels, 6)),
        zeros((chunk, num_labels, 2)),
        zeros((chunk, num_labels, 2)),
        zeros((chunk, num_labels)),
        zeros((chunk, num_labels)),
        zeros((chunk, dim)),
        zeros(dim),
        zeros(most_slots),
        zeros(most_slots, np.bool_),
        zeros((most_slots, num_labels), np.int64),
        zeros((most_crosses, num_labels), np.int64),
    )


def _most_in_chunk(offsets_R1: Any, chunk: int) -> int:
    bounds = np.append(offsets_R1[:-1:chunk], offsets_R1[-1])
    return int(np.diff(bounds).max(initial=0))
