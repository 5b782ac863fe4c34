"""The CUDA backend in tests: its kernels as host C++ everywhere, and on the GPU where there is one."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from tests.support.gpu_emulation.simt import COMPILER, SimtDevice


def gpu_or_why_not() -> str | None:
    """None where a GPU can be used."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: springtide[gpu]"
    import torch

    return None if torch.cuda.is_available() else "torch sees no NVIDIA GPU"


def device_of(name: str, seed: int = 0) -> Any:
    """The device of this name; skips aloud where it is not to be had."""
    if name == "gpu":
        if why := gpu_or_why_not():
            pytest.skip(why)
        from springtide.kernels.cuda.cupy_device import CupyDevice

        return CupyDevice()
    if COMPILER is None:
        pytest.skip("neither g++ nor clang++ is installed: the CUDA kernels do not run here as host C++")
    return SimtDevice(seed)


DEVICES = ["host", pytest.param("gpu", marks=pytest.mark.gpu)]


def host(array: Any) -> Any:
    """The array as numpy's."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
