"""The arrays that the in-order pass reads and writes, beside springtide_client.wide.parameters.WideParameters."""

# N samples, S slots (of a row: state columns), C crosses of all samples, U rows, Q rows of crosses, D dimension,
# L labels, F fields, P pairs of fields, T types of slots (F + P), B buckets, X numbers of a sample, G parts of a score,
# K slots of a sample, then its crosses
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.njit import njit
from springtide_client.wide.parameters import WideParameters

# Numba counts references to every array of a tuple at each call; what only writes into arrays needs none of that
in_place = njit(nogil=True, cache=True, _nrt=False)


NO_SHARES, NONE_SETTLED, ALL_COUNTED = np.empty((0, 0), np.float32), np.empty(0, np.uint8), np.empty(0, np.bool_)
NO_WEIGHTS = np.empty(0)


class WideBatch(NamedTuple):
    """A batch: its samples, and the rows that its slots refer to, which are written in place."""

    rows_S: Any  # int64, the row of each slot
    fields_S: Any  # int64
    offsets_N1: Any  # int64, the slots of sample n are offsets_N1[n] to offsets_N1[n + 1]
    x_NX: Any  # float64
    net_NL: Any  # float32, the deep net's logits
    labels_NL: Any  # float32; NaN: masked
    weights_NL: Any  # float32, by which a label's loss is multiplied
    counted_N: Any  # float32, for how many samples one stands
    offsets_NL: Any  # float32, added to a logit in its loss
    values_UD: Any  # float32
    states_US: Any  # float32, with the columns of the wide part from `wide_from` on
    counts_U: Any  # int64
    wide_from: int
    shares_NL: Any  # float32, of labels whose events may come late (late_weights.py), NaN: others; no rows: of none
    is_settled_L: Any  # uint8
    is_counted_N: Any  # bool, samples whose ids count; empty: all
    has_squares: bool  # the first state is the summed squared gradients of row-wise Adagrad: vectors are stepped
    weights_S: Any = NO_WEIGHTS  # float64, by which all that a slot adds is multiplied; empty: by 1


class CrossBatch(NamedTuple):
    """The crosses of samples start to stop of a batch, and their rows, which are written in place."""

    start: int
    stop: int
    rows_C: Any  # int64, the row of each cross
    pairs_C: Any  # int64
    offsets_R1: Any  # int64, from `start` on
    potential_N: Any  # int64, of every sample of the batch: its crosses if all pairs lived
    weights_Q2L: Any  # float32: weight and information of label 0, then of label 1, ...
    weights_C: Any = NO_WEIGHTS  # float64, of crosses, as WideBatch.weights_S; empty: 1


class SampleWorkspace(NamedTuple):
    """One sample's numbers, gathered: of one label at a time, float64 unless noted."""

    weights_K: Any
    informations_K: Any
    strengths_K: Any
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
    times_K: Any  # how often the sample has the item's row: the sum of x_K
    x_K: Any  # by what an item is multiplied: the weight of an id in its list, otherwise 1
    information_bits_K: Any  # int64, the memory of informations_K
    places_K: Any  # int64, of an item's gate
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


class WidePass(NamedTuple):
    """What a pass over samples reads and writes."""

    batch: WideBatch
    crosses: CrossBatch
    arrays: WideParameters
    work: SampleWorkspace
    logits_NL: Any  # float64, written


@njit(nogil=True, cache=True)
def new_pass(batch: WideBatch, crosses: CrossBatch, arrays: WideParameters, logits_NL: Any) -> WidePass:
    """Return a pass with a workspace that is long enough for every sample."""
    most = arrays.number_weights_LX.shape[1]
    for n in range(crosses.start, crosses.stop):
        r = n - crosses.start
        num_crosses = crosses.offsets_R1[r + 1] - crosses.offsets_R1[r]
        most = max(most, batch.offsets_N1[n + 1] - batch.offsets_N1[n] + num_crosses)
    k, i, d = np.zeros((23, most)), np.zeros((3, most), np.int64), np.zeros((3, batch.values_UD.shape[1]))
    work = SampleWorkspace(
        *(k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7], k[8], k[9], k[10], k[11]),
        *(k[12], k[13], k[14], k[15], k[16], k[17], k[18], k[19], k[20], k[21], k[22], np.ones(most)),
        *(k[1].view(np.int64), i[0], i[1], i[2], np.zeros(6), np.zeros(2), d[0], d[1], d[2]),
        np.full(len(batch.values_UD), -1, np.int64),
        np.full(len(crosses.weights_Q2L), -1, np.int64),
        np.full(arrays.gates_LTB[0].size, -1, np.int64),
    )
    return WidePass(batch, crosses, arrays, work, logits_NL)
