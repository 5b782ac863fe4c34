"""What a version changes in a table, and keys as a caller gives them."""

# N rows, K keys of a caller
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.kernels.types import Array
from springtide_client.rows.row_block import RowBlock

UInt16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


NO_KEYS = RowBlock.zeros(0, 0)


@dataclass(frozen=True)
class TableDelta:
    """Changes of a table since the previous version: dirty rows, and the keys that were forgotten.

    Each key occurs once in either. To apply it, forget first and then write the rows.
    """

    rows: RowBlock
    forgotten: RowBlock = NO_KEYS

    def where(self, chosen_N: BoolArray) -> "TableDelta":
        """The delta without the rows for which this is false."""
        return TableDelta(self.rows.where(chosen_N), self.forgotten)


def as_keys(features_K: Array, ids_K: Array, times_K: Array) -> tuple[Array, Array, Array]:
    """Contiguous arrays uint16, int64, int64. ValueError if lengths differ or values are not integers of that range.

    Arrays on a device must have these types already: checking their values would wait for the device.
    """
    if not features_K.shape == ids_K.shape == times_K.shape or ids_K.ndim != 1:
        raise ValueError(
            f"features {features_K.shape}, ids {ids_K.shape} and times {times_K.shape} must have one length"
        )
    if not isinstance(ids_K, np.ndarray):
        if (features_K.dtype, ids_K.dtype, times_K.dtype) != (np.uint16, np.int64, np.int64):
            raise ValueError(
                f"on a device features must be uint16 and ids int64, not {features_K.dtype} and {ids_K.dtype}"
            )
        return features_K, ids_K, times_K
    if ids_K.dtype.kind not in "iu" or features_K.dtype.kind not in "iu":
        raise ValueError(f"features and ids must be integers, not {features_K.dtype} and {ids_K.dtype}")
    if features_K.dtype != np.uint16 and len(features_K) and not 0 <= features_K.min() <= features_K.max() < 2**16:
        raise ValueError("features must be in 0..65535")
    if ids_K.dtype == np.uint64 and len(ids_K) and ids_K.max() >= 2**63:
        raise ValueError("ids must fit in int64")
    return (
        np.ascontiguousarray(features_K, np.uint16),
        np.ascontiguousarray(ids_K, np.int64),
        np.ascontiguousarray(times_K, np.int64),
    )
