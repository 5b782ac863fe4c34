"""Where the keys of a batch are in memory, and which of them were predicted to be missing."""

# U unique keys, N some of them
from typing import NamedTuple

import numpy as np

from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.kernels.types import Array

NO_NEW_KEYS = np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.int64)


class Placement(NamedTuple):
    """The slots of a batch's keys. N are the new keys, whose slots hold no row yet; their keys are on the host too."""

    slots_U: Array
    new_N: Array  # positions in U
    positions_N: Int64Array  # the same on the host
    features_N: UInt16Array
    ids_N: Int64Array


class PredictedMisses(NamedTuple):
    """The keys of a batch that were not in memory when it was prefetched, in the order of the batch.

    The prediction holds while the two counters are those of memory.changes.
    """

    writes: int
    removals: int
    positions_N: Int64Array  # in U
    features_N: UInt16Array
    ids_N: Int64Array
