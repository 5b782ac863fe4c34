"""The verbs on one NVIDIA GPU: checks of dtype and shape, and launches on torch's current stream."""

from kernels.cuda.launchers.index_ops import IndexVerbs
from kernels.cuda.launchers.key_ops import KeyVerbs
from kernels.cuda.launchers.row_ops import RowVerbs
from kernels.cuda.launchers.scan_ops import SweepVerbs
from kernels.cuda.launchers.sketch_ops import SketchVerbs
from kernels.cuda.launchers.store_ops import StoreVerbs
from kernels.cuda.launchers.transfer_ops import TransferVerbs
from kernels.cuda.launchers.update_ops import UpdateVerbs


class CudaVerbs(TransferVerbs, StoreVerbs, IndexVerbs, KeyVerbs, RowVerbs, UpdateVerbs, SweepVerbs, SketchVerbs):
    """The verbs of kernels/spec.py, on CuPy arrays; numpy's are copied to the GPU, torch's are taken as they are.

    With `late=True`, as tables take it, what may come late does; with `exact=False` no verb of a step waits for the
    GPU: `Launcher` says what becomes of lengths and counts.
    """
