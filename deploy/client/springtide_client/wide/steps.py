"""The parts of a wide prediction that servers compile. The reference of each is plain numpy."""

# N samples, D dense features, X numbers of a sample, K keys, W columns of the wide part
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt16Array
from springtide_client.features import Features
from springtide_client.schema import Schema
from springtide_client.wide.bins import Float64Array, bin_ids, signed_logs, standardize
from springtide_client.wide.crosses import CrossSlots, born_of_rows, cross_slots, row_hashes
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideScore, score
from springtide_client.wide.slots import Slots, slots_of

# from dense features and number_statistics_3D: the numbers (N, X), and the id of each bin (N, D)
NumbersStep = Callable[[Float32Array, Float64Array], tuple[Float64Array, Int64Array]]
# from the keys of ids and bins that samples have, and the wide part's columns of their rows
SlotsStep = Callable[
    [Schema, Features, WideParameters, UInt16Array, Int64Array, Float32Array], tuple[Slots, CrossSlots]
]


@dataclass(frozen=True)
class WideSteps:
    """One after the other; between them rows are looked up."""

    numbers: NumbersStep
    slots: SlotsStep
    score: WideScore


def numbers_and_bins(dense_ND: Float32Array, statistics_3D: Float64Array) -> tuple[Float64Array, Int64Array]:
    """Return standardized numbers and bins."""
    x_NX = standardize(signed_logs(dense_ND), statistics_3D)
    return x_NX, bin_ids(x_NX)


def slots_and_crosses(
    schema: Schema,
    features: Features,
    parameters: WideParameters,
    features_K: UInt16Array,
    ids_K: Int64Array,
    wide_KW: Float32Array,
) -> tuple[Slots, CrossSlots]:
    """Return the slots of samples, and the crosses of live pairs."""
    slots, born_K = slots_of(schema, features), born_of_rows(wide_KW, parameters.num_labels)
    hashes_K = row_hashes(features_K.astype(np.int64), ids_K, born_K)
    return slots, cross_slots(slots, parameters.pair_fields_P2, parameters.live_pairs, hashes_K, born_K)


NUMPY_STEPS = WideSteps(numbers_and_bins, slots_and_crosses, score)
