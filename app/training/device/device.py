"""Where rows and dense net are trained: on the host, or on a GPU."""

from typing import NamedTuple

import torch

from springtide.app.training.config import TrainConfig
from springtide.app.training.device.graph_capture import GraphCapture, capture_cuda_graph
from springtide.app.training.device.transfer_stream import CudaTransferStream, TransferStream
from springtide.kernels.ops import Ops


class TrainDevice(NamedTuple):
    """A device. Without a transfer stream, batches are learned in the memory where they are."""

    device: torch.device = torch.device("cpu")
    transfer: TransferStream | None = None
    graph_capture: GraphCapture | None = None  # None: the dense step runs without CUDA graphs
    table: str | Ops = "cpu"  # where rows are trained

    @property
    def has_bfloat16(self) -> bool:
        """True if it multiplies bfloat16 in hardware; elsewhere that is slower than float32."""
        if self.device.type == "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        has_avx512 = torch.backends.cpu.get_cpu_capability(), torch.cpu._is_avx512_bf16_supported()
        return has_avx512[1] or torch.cpu._is_amx_tile_supported()


def resolve_device(config: TrainConfig) -> TrainDevice:
    """Return the device that `[train] device` names; ValueError if this machine does not have it."""
    if config.device != "cuda":
        return TrainDevice()
    if not torch.cuda.is_available():
        raise ValueError(
            '[train] device = "cuda" needs an NVIDIA GPU, its driver and a CUDA build of PyTorch: '
            f'torch {torch.__version__} sees none here; take device = "cpu"'
        )
    capture = capture_cuda_graph if config.cuda_graphs else None
    return TrainDevice(torch.device("cuda"), CudaTransferStream(), capture, "cuda")
