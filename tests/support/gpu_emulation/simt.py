"""A device for the launchers of kernels/cuda that needs no GPU: their kernels as host C++, on the host's memory."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from springtide.kernels.cuda.sources import Defines, kernels_of, source_of
from tests.support.gpu_emulation.device_array import FENCE, GARBAGE, ArrayModule, DeviceArray, waits

COMPILER = shutil.which("g++") or shutil.which("clang++")
HEADER = Path(__file__).parent / "simt.h"
LAUNCHING = threading.Lock()  # one kernel at a time: the memory of its blocks is the library's
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


class SimtDevice:
    """Runs kernels at once; a seed shuffles the turns of their threads and blocks."""

    threads = 64
    xp = ArrayModule()

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.copies_early = seed % 2 == 0  # those beside the work: as early as they may come, or as late
        self.num_launches = 0

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        return self.filled(shape, dtype, GARBAGE)

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Any:
        return DeviceArray.filled(shape, dtype, byte)

    def on_current_stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def put(self, array: Any) -> Any:
        return array if isinstance(array, DeviceArray) else DeviceArray.of(np.asarray(array))

    def put_all(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(self.put, arrays))

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Any, ...]]:
        pinned = [np.array(array) for array in arrays]  # they may change once this returns
        there = self.put_all(pinned) if self.copies_early else None
        return lambda: self.put_all(pinned) if there is None else there

    def fetch(self, arrays: Sequence[Any]) -> Callable[[], tuple[Any, ...]]:
        copies, begun = [array.numbers.copy() for array in arrays], self.num_launches

        def wait() -> tuple[Any, ...]:
            waits[0] += begun == self.num_launches  # else the copy was made while other work went on
            return tuple(copies)

        return wait

    def download_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Any, ...]]:
        arrive, kept = self.fetch(arrays), [*arrays]

        def wait() -> tuple[Any, ...]:
            early, late = arrive(), [array.numbers.copy() for array in kept]
            for one, other in zip(early, late, strict=True):
                assert one.tobytes() == other.tobytes(), "an array was written to while it was on its way to the host"
            return early

        return wait

    def array_of(self, tensor: Any) -> Any:
        return DeviceArray(tensor.detach().numpy())  # every tensor is taken for one of the device

    def tensor(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(array.numbers)

    def address(self, array: Any) -> int:
        return int(array.numbers.ctypes.data)

    def launch(
        self, family: str, kernel: str, num_blocks: int, arguments: Sequence[Any], defines: Defines = ()
    ) -> None:
        self.num_launches += 1
        with LAUNCHING:
            functions = library(family, defines)
            call(functions, kernel, arguments, num_blocks=num_blocks, threads=self.threads, seed=self.seed)
        fences = [fence for array in arguments for fence in getattr(array, "fences", ())]
        assert all((fence == FENCE).all() for fence in fences), f"{kernel} wrote beside an array"

    def sort(self, keys_K: Any) -> tuple[Any, Any]:
        order = np.argsort(keys_K.numbers, kind="stable")
        return self.put(keys_K.numbers[order]), self.put(order)

    def read(self, *numbers_1: Any) -> list[int]:
        return [int(number_1[0]) for number_1 in self.fetch(numbers_1)()]


def cell_of(argument: Any) -> Any:
    """Where the kernel finds an argument: a pointer, or a number of its type."""
    if isinstance(argument, DeviceArray):
        assert argument.flags.c_contiguous
        return np.array([argument.numbers.ctypes.data], np.uint64)
    assert isinstance(argument, np.generic), f"a kernel takes arrays and numpy scalars, not {argument!r}"
    return np.array([argument])
