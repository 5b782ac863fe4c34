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
HEADER = Path(__file__).parent / "simt.h"
BUILT = Path(tempfile.gettempdir()) / f"springtide-simt-{os.getuid()}"


@cache
def library(family: str, defines: Defines) -> Any:
    """The family's kernels, compiled for the host; compiled again only when their text changes."""
    assert COMPILER
    entries = "".join(f"ENTRY({name})\n" for name in kernels_of(family))
    text = f'#include "{HEADER}"\n{source_of(family)}{entries}'
    flags = [
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-shared",
        "-ffp-contract=off",
        "-w",
        *(f"-D{key}={value}" for key, value in defines),
    ]
    name = hashlib.sha256("\n".join([text, HEADER.read_text(), *flags]).encode()).hexdigest()[:24]
    path = BUILT / f"{family}-{name}.so"
    if not path.exists():
        BUILT.mkdir(mode=0o700, exist_ok=True)
        fresh = BUILT / f"{path.name}.{os.getpid()}"
        done = subprocess.run(
            [COMPILER, *flags, "-x", "c++", "-", "-o", str(fresh)], input=text, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        fresh.rename(path)
    return ctypes.CDLL(str(path))


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
        bytes_ = np.full(num_bytes + 128, byte, np.uint8)
        start = -bytes_.ctypes.data % 128  # as a GPU's allocator aligns
        return bytes_[start : start + num_bytes].view(dtype).reshape(shape)

    def put(self, array: Any) -> Any:
        there = self.empty(array.shape, array.dtype)
        there[...] = array
        return there

    def launch(
        self, family: str, kernel: str, num_blocks: int, arguments: Sequence[Any], defines: Defines = ()
    ) -> None:
        functions = library(family, defines)
        sizes = (ctypes.c_int * 64)()
        num = getattr(functions, f"sizes_{kernel}")(sizes)
        cells = [cell_of(argument) for argument in arguments]
        assert [cell.nbytes for cell in cells] == list(sizes[:num]), f"{kernel}: {[*map(type, arguments)]}"
        pointers = (ctypes.c_void_p * max(1, num))(*(cell.ctypes.data for cell in cells))
        launch = getattr(functions, f"launch_{kernel}")
        launch.restype = ctypes.c_char_p
        failure = launch(num_blocks, self.threads, self.seed, pointers)
        assert failure is None, f"{kernel}: {failure.decode()}"

    def sort(self, keys_K: Any) -> tuple[Any, Any]:
        order = np.argsort(keys_K, kind="stable")
        return self.put(keys_K[order]), self.put(order)

    def read(self, number_1: Any) -> int:
        return int(number_1[0])


def cell_of(argument: Any) -> Any:
    """Where the kernel finds an argument: a pointer, or a number of its type."""
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return np.array([argument.ctypes.data], np.uint64)
    assert isinstance(argument, np.generic), f"a kernel takes arrays and numpy scalars, not {argument!r}"
    return np.array([argument])
