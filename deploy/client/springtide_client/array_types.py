"""Names for the numpy array types that occur in signatures."""

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
UInt8Array = npt.NDArray[np.uint8]
UInt16Array = npt.NDArray[np.uint16]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
