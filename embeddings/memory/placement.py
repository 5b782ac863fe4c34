"""Where a batch's keys are in memory, and which of them were seen to be missing ahead of their turn."""

# U unique keys, N some of them
from typing import NamedTuple

import numpy as np

from embeddings.rows import Int64Array, UInt16Array
from kernels.types import Array

NO_NEW_KEYS = np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.int64)


class Placement(NamedTuple):
    """Where a batch's keys are; of those that are new, which hold no row yet, also what the host is told."""

    slots_U: Array
    new_N: Array  # positions in U
    positions_N: Int64Array  # the same on the host
    features_N: UInt16Array
    ids_N: Int64Array


class PredictedMisses(NamedTuple):
    """The keys of a batch that had no row when it was looked at ahead of its turn, in the order of the batch."""

    writes: int  # of the memory at that time
    removals: int
    positions_N: Int64Array  # in U
    features_N: UInt16Array
    ids_N: Int64Array
