"""The ops on one NVIDIA GPU: checks of dtype and shape, and launches on torch's current stream."""

from kernels.cuda.launchers.index_ops import IndexOps
from kernels.cuda.launchers.key_ops import KeyOps
from kernels.cuda.launchers.learned_row_ops import LearnedRowOps
from kernels.cuda.launchers.row_ops import RowOps
from kernels.cuda.launchers.scan_ops import ScanOps
from kernels.cuda.launchers.sketch_ops import SketchOps
from kernels.cuda.launchers.store_ops import StoreOps
from kernels.cuda.launchers.transfer_ops import TransferOps
from kernels.cuda.launchers.update_ops import UpdateOps


class CudaOps(TransferOps, StoreOps, IndexOps, KeyOps, RowOps, LearnedRowOps, UpdateOps, ScanOps, SketchOps):
    """The ops of kernels/ops.py, on CuPy arrays; numpy's are copied to the GPU, torch's are taken as they are.

    With `late=True`, as tables use it, results that may stay on the device do; with `exact=False` no op of a step
    waits for the GPU (see `Launcher`).
    """
