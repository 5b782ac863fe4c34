"""The backends that a table's tests run on: the CPU's, CUDA's as host C++, and CUDA's on a GPU if there is one."""

from typing import Any

import pytest

from springtide.embeddings.lookup.handle import Lookup
from springtide.kernels.backend import backend
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.ops import Ops
from springtide_client.keys import SHARED_ROW_OFFSET
from tests.support.gpu_emulation.emulated_ops import device_of, host
from tests.support.gpu_emulation.simt import SimtDevice

__all__ = ["BACKENDS", "host", "is_emulated", "ops_of", "uses_shared_row"]
BACKENDS = ["cpu", "emulated", pytest.param("gpu", marks=pytest.mark.gpu)]


def ops_of(name: str, seed: int = 0) -> Ops:
    """The ops of this name; skips the test if they cannot run."""
    if name == "cpu":
        return backend("cpu")
    return CudaOps(device_of("gpu" if name == "gpu" else "host", seed), late=True)


def is_emulated(ops: Ops) -> bool:
    """Return True for the emulated backend, which is slow: tests are smaller on it."""
    return isinstance(getattr(ops, "_device", None), SimtDevice)


def uses_shared_row(lookup: Lookup) -> Any:
    """Which keys of a lookup share a row because they are not admitted yet; on the host."""
    return host((lookup.unique.features_U >= SHARED_ROW_OFFSET)[lookup.unique.inverse_K])
