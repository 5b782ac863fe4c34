"""The arrays that the in-order pass reads and writes.

Field for field, `WideArrays` is springtide_client.wide.parameters.WideParameters.
"""

# N samples, S slots, C crosses of all samples, U rows, Q rows of crosses, D dimension, L labels, W columns of the wide
# part, F fields, P pairs of fields, T types of slots (F + P), B buckets, X numbers of a sample, G parts of a score,
# K slots of a sample, then its crosses
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


class SampleWorkspace(NamedTuple):
    """One sample's numbers, gathered: of one label at a time, float64 unless noted."""

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
    slopes_K: Any  # of items with a row in common, at the first of them; so are the next ones
    added_K: Any
    gate_slopes_K: Any
    gate_added_K: Any
    plain_weights_K: Any
    plain_squares_K: Any
    plain_slopes_K: Any
    seen_K: Any  # xn of a slot
    never_K: Any  # 1 where its id was never seen, otherwise 0
    bits_K: Any
    seen_parts_K: Any
    seen_moves_K: Any
    never_moves_K: Any
    times_K: Any  # how often the sample has the item's row
    first_K: Any  # int64, the first item with the same row; not written where no field has two slots
    gate_first_K: Any  # int64, with the same gate
    parts_G: Any
    plain_parts_G: Any
    sums_D: Any
    squares_D: Any
    gradients_D: Any
    first_of_U: Any  # int64, the first item of the sample with a row; -1 between samples
    first_of_Q: Any
    first_of_TB: Any  # of a gate


def new_workspace(batch: WideBatch, crosses: CrossBatch, arrays: WideArrays) -> SampleWorkspace:
    """Return arrays that are long enough for every sample."""
    slots_N = np.diff(batch.offsets_N1[crosses.start : crosses.stop + 1])
    most = int((slots_N + np.diff(crosses.offsets_R1)).max(initial=0))
    most = max(most, arrays.number_weights_LX.shape[1])
    every = {name: np.zeros(most) for name in SampleWorkspace._fields if name.endswith("_K")}
    every |= {name: np.zeros(most, np.int64) for name in ("places_K", "first_K", "gate_first_K")}
    every["information_bits_K"] = every["informations_K"].view(np.int64)
    every |= {name: np.zeros(batch.values_UD.shape[1]) for name in ("sums_D", "squares_D", "gradients_D")}
    numbers = {"U": len(batch.values_UD), "Q": len(crosses.weights_Q2L), "TB": arrays.gates_LTB[0].size}
    every |= {f"first_of_{axis}": np.full(number, -1, np.int64) for axis, number in numbers.items()}
    return SampleWorkspace(**every, parts_G=np.zeros(6), plain_parts_G=np.zeros(2))
