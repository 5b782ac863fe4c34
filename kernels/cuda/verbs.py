"""The verbs on one NVIDIA GPU: checks of dtype and shape, and launches on torch's current stream."""

from kernels.cuda.index_verbs import IndexVerbs
from kernels.cuda.key_verbs import KeyVerbs
from kernels.cuda.row_verbs import RowVerbs
from kernels.cuda.sketch_verbs import SketchVerbs
from kernels.cuda.store_verbs import StoreVerbs
from kernels.cuda.sweep_verbs import SweepVerbs
from kernels.cuda.transfer_verbs import TransferVerbs
from kernels.cuda.update_verbs import UpdateVerbs


class CudaVerbs(TransferVerbs, StoreVerbs, IndexVerbs, KeyVerbs, RowVerbs, UpdateVerbs, SweepVerbs, SketchVerbs):
    """The verbs of kernels/spec.py, on CuPy arrays; numpy's are copied to the GPU, torch's are taken as they are.

    With `late=True`, as tables take it, what may come late does; with `exact=False` no verb of a step waits for the
    GPU: `Launcher` says what becomes of lengths and counts.
    """
