"""The fields of the wide part: id features that own rows, dense ones as numbers and as ids of bins, bias fields."""

# F fields, N samples, D dense features, X numbers of a sample (2 D: value and missing indicator of each dense feature)
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Float32Array, Int64Array
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema


@dataclass(frozen=True, eq=False)
class WideFields:
    """Fields are referred to by their place here; rows and pairs by feature numbers, which outlive the schema.

    A feature that shares another's rows is no field: the weights of those rows belong to the owner.
    """

    names: tuple[str, ...]
    numbers_F: Int64Array
    num_bias: int = 0  # of the last fields: their weights stand alone, in crosses among themselves, and in no vectors

    def __len__(self) -> int:
        return len(self.names)

    @staticmethod
    def of(schema: Schema) -> "WideFields":
        """Return the fields in the order of their slots."""
        numbers = [schema.number(name) for name in schema.owners]
        numbers += [*schema.dense_numbers, *schema.bias_numbers]
        names = (*schema.owners, *schema.dense, *schema.bias)
        return WideFields(names, np.array(numbers, np.int64), len(schema.bias))


Float64Array = npt.NDArray[np.float64]

BINS_PER_DEVIATION = 2  # bins in one standard deviation
MAX_DEVIATIONS = 5.0
VARIANCE_FLOOR = 1e-4


def signed_logs(dense_ND: Float32Array) -> Float64Array:
    """Return sign(x) * log(1 + |x|), float64; NaN where a number is missing. Contiguous, so that equal runs are equal.

    Kernels take these instead of computing logarithms of their own, whose last bits could differ.
    """
    dense_ND = np.ascontiguousarray(dense_ND, np.float64)
    return np.copysign(np.log1p(np.abs(dense_ND)), dense_ND)


def standardize(logs_ND: Float64Array, statistics_3D: Float64Array) -> Float64Array:
    """Return numbers (N, X): column 2 d is dense feature d in standard deviations, 2 d + 1 is 1 where it is missing.

    `statistics_3D`: mean, variance and count of the values so far; before the first value every number is 0.
    """
    mean_D, variance_D, count_D = statistics_3D
    known_ND = ~np.isnan(logs_ND)
    x_NX = np.zeros((len(logs_ND), 2 * logs_ND.shape[1]))
    values_ND = (logs_ND - mean_D) / np.sqrt(variance_D + VARIANCE_FLOOR)
    values_ND = np.minimum(np.maximum(values_ND, -MAX_DEVIATIONS), MAX_DEVIATIONS)
    x_NX[:, 0::2] = np.where(known_ND & (count_D > 0), values_ND, 0.0)
    x_NX[:, 1::2] = ~known_ND
    return x_NX


def bin_ids(x_NX: Float64Array) -> Int64Array:
    """Return the id of each dense feature's bin, (N, D): half standard deviations, rounded down; MISSING_ID."""
    bins_ND = np.floor(x_NX[:, 0::2] * BINS_PER_DEVIATION).astype(np.int64)
    return np.where(x_NX[:, 1::2] > 0, MISSING_ID, bins_ND)
