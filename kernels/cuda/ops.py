"""The ops on one NVIDIA GPU: checks of dtype and shape, and launches on torch's current stream."""

from springtide.kernels.cuda.launchers.index_ops import IndexOps, KeyOps, ScanOps
from springtide.kernels.cuda.launchers.row_ops import LearnedRowOps, RowOps
from springtide.kernels.cuda.launchers.sketch_ops import SketchOps
from springtide.kernels.cuda.launchers.store_ops import StoreOps, TransferOps
from springtide.kernels.cuda.launchers.update_ops import UpdateOps


class CudaOps(TransferOps, StoreOps, IndexOps, KeyOps, RowOps, LearnedRowOps, UpdateOps, ScanOps, SketchOps):
    """The ops of kernels/ops.py, on CuPy arrays; numpy's are copied to the GPU, torch's are taken as they are.

    With `late=True`, as tables use it, results that may stay on the device do; with `exact=False` no op of a step
    waits for the GPU (see `Launcher`).
    """
