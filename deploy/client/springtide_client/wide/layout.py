"""The wide part's own numbers of a row: the last columns of its optimizer state, float32, zero at first."""

# L labels, W columns (4 L + 1), B buckets of information
import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Indices

# column 4 l + one of these is label l's
WEIGHT, INFORMATION, PLAIN_WEIGHT, PLAIN_SQUARES = range(4)
COLUMNS_OF_A_LABEL = 4

# `born`: 1 + (samples trained before the one that created the row) modulo this; 0: no sample has used the row yet
BORN_PERIOD = (1 << 24) - 1

NUM_BUCKETS = 12


def wide_width(num_labels: int) -> int:
    """Return how many numbers a row has for the wide part, W: four for each label, then `born`."""
    return COLUMNS_OF_A_LABEL * num_labels + 1


def born_column(num_labels: int) -> int:
    """Return the place of `born` among the W columns: the last."""
    return COLUMNS_OF_A_LABEL * num_labels


def born_of(num_samples: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return `born` of rows that were created after so many samples had been trained; float32 holds it exactly."""
    return (1 + num_samples % BORN_PERIOD).astype(np.float32)


def buckets_of(information: npt.NDArray[np.float32]) -> Indices:
    """Return each weight's gate: 0 below 1/4, then one more for each doubling, at most NUM_BUCKETS - 1."""
    exponents = np.frexp(information.astype(np.float64) * 4)[1]
    return np.clip(exponents, 0, NUM_BUCKETS - 1).astype(np.intp)
