"""A device for the launchers of kernels/cuda that needs no GPU: their kernels as host C++, on numpy arrays."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernels.cuda.sources import Defines, kernels_of, source_of

COMPILER = shutil.which("g++") or shutil.which("clang++")
GARBAGE = 0xAB  # fresh memory holds this
FENCE, FENCE_BYTES = 0xC5, 128  # what stands before and behind an array
HEADER = Path(__file__).parent / "simt.h"
BUILT = Path(tempfile.gettempdir()) / f"springtide-simt-{os.getuid()}"


@cache
def library(family: str, defines: Defines) -> Any:
    """The family's kernels, compiled for the host; compiled again only when their text changes."""
    return built(family, source_of(family), kernels_of(family), defines)


def built(name: str, source: str, kernels: Sequence[str], defines: Defines = ()) -> Any:
    """Kernels of a text, each with an entry that ctypes can call."""
    assert COMPILER
    entries = "".join(f"ENTRY({kernel})\n" for kernel in kernels)
    text = f'#include "{HEADER}"\n{source}{entries}'
    flags = ["-std=c++17", "-O0", "-fPIC", "-shared", "-ffp-contract=off", "-w"]
    flags += [f"-D{key}={value}" for key, value in defines]
    digest = hashlib.sha256("\n".join([text, HEADER.read_text(), *flags]).encode()).hexdigest()[:24]
    path = BUILT / f"{name}-{digest}.so"
    if not path.exists():
        BUILT.mkdir(mode=0o700, exist_ok=True)
        fresh = BUILT / f"{path.name}.{os.getpid()}"
        done = subprocess.run(
            [COMPILER, *flags, "-x", "c++", "-", "-o", str(fresh)], input=text, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        fresh.rename(path)
    return ctypes.CDLL(str(path))


def call(functions: Any, kernel: str, arguments: Sequence[Any], *, num_blocks: int, threads: int, seed: int) -> None:
    """Launches a kernel of a library; AssertionError where sizes differ, or it does what is undefined."""
    sizes = (ctypes.c_int * 64)()
    num = getattr(functions, f"sizes_{kernel}")(sizes)
    cells = [cell_of(argument) for argument in arguments]
    assert [cell.nbytes for cell in cells] == list(sizes[:num]), f"{kernel}: {[*map(type, arguments)]}"
    pointers = (ctypes.c_void_p * max(1, num))(*(cell.ctypes.data for cell in cells))
    launch = getattr(functions, f"launch_{kernel}")
    launch.restype = ctypes.c_char_p
    failure = launch(num_blocks, threads, seed, pointers)
    assert failure is None, f"{kernel}: {failure.decode()}"


class DeviceArray(np.ndarray[Any, Any]):
    """An array that a kernel may be given; others are the host's. What is cut from it stands between its fences."""

    fences: tuple[Any, ...] = ()

    def __array_finalize__(self, source: Any) -> None:
        self.fences = getattr(source, "fences", ())


class SimtDevice:
    """Runs kernels at once; a seed shuffles the turns of their threads and blocks."""

    threads = 64

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        return self.filled(shape, dtype, GARBAGE)

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Any:
        shape = (shape,) if isinstance(shape, int) else shape
        num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        bytes_ = np.full(num_bytes + 3 * FENCE_BYTES, FENCE, np.uint8)
        start = -bytes_.ctypes.data % 128 + FENCE_BYTES  # aligned as a GPU's allocator aligns
        bytes_[start : start + num_bytes] = byte
        array = bytes_[start : start + num_bytes].view(dtype).reshape(shape).view(DeviceArray)
        array.fences = (bytes_[:start], bytes_[start + num_bytes :])
        return array

    def put(self, array: Any) -> Any:
        if isinstance(array, DeviceArray):
            return array
        array = np.asarray(array)
        there = self.empty(array.shape, array.dtype)
        there[...] = array
        return there

    def tensor(self, array: Any) -> Any:
        import torch

        return torch.from_dlpack(array)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def launch(
        self, family: str, kernel: str, num_blocks: int, arguments: Sequence[Any], defines: Defines = ()
    ) -> None:
        # all optimizers at once: ten compilations of one take longer than one of ten
        functions = library(family, tuple(pair for pair in defines if pair[0] != "ONLY"))
        call(functions, kernel, arguments, num_blocks=num_blocks, threads=self.threads, seed=self.seed)
        fences = [fence for array in arguments for fence in getattr(array, "fences", ())]
        assert all((fence == FENCE).all() for fence in fences), f"{kernel} wrote beside an array"

    def sort(self, keys_K: Any) -> tuple[Any, Any]:
        keys_K = np.asarray(keys_K)
        order = np.argsort(keys_K, kind="stable")
        return self.put(keys_K[order]), self.put(order)

    def read(self, number_1: Any) -> int:
        return int(number_1[0])


def cell_of(argument: Any) -> Any:
    """Where the kernel finds an argument: a pointer, or a number of its type."""
    if isinstance(argument, np.ndarray):
        assert isinstance(argument, DeviceArray)
        assert argument.flags.c_contiguous
        return np.array([argument.ctypes.data], np.uint64)
    assert isinstance(argument, np.generic), f"a kernel takes arrays and numpy scalars, not {argument!r}"
    return np.array([argument])
