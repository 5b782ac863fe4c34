"""What the launchers need of a GPU: arrays, launches, one sort, and the one way to read a number back.

Memory is torch's, so that there is one allocator; work goes to torch's current stream, so that there is one order.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from kernels.cuda.sources import Defines, options_of, source_of

Array = Any  # cupy.ndarray; numpy.ndarray where the tests' device stands in


class Device(Protocol):
    """A GPU, or what the tests put in its place."""

    threads: int  # of a block

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An array of any numbers."""
        ...

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Array:
        """An array of which every byte is this one."""
        ...

    def put(self, array: Any) -> Array:
        """The array on the device: copied from the host, as it is where it is there; torch's without a copy."""
        ...

    def tensor(self, array: Array) -> Any:
        """The array as torch's, without a copy."""
        ...

    def address(self, array: Array) -> int:
        """Where the array begins."""
        ...

    def launch(
        self, family: str, kernel: str, num_blocks: int, arguments: Sequence[Any], defines: Defines = ()
    ) -> None:
        """A kernel of a family on the current stream; arguments are arrays and numpy scalars of the kernel's types."""
        ...

    def sort(self, keys_K: Array) -> tuple[Array, Array]:
        """The keys ascending, and where they stood, int64; equal ones in their order."""
        ...

    def read(self, number_1: Array) -> int:
        """A number that is known to the device only. Waits for all that was launched before it."""
        ...


class TorchStream:
    """A stream as CUDA libraries hand it to each other; torch's own knows the protocol from 2.10 on."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


class CupyDevice:
    """The GPU that torch has chosen; ValueError where there is none or CuPy is missing."""

    threads = 256

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise ValueError(
                "the device 'cuda' needs CuPy: install springtide[gpu], or take the device 'cpu'"
            ) from error
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "the device 'cuda' needs an NVIDIA GPU, its driver and a CUDA build of PyTorch: "
                f"torch {torch.__version__} sees none here; take the device 'cpu'"
            )
        self._cupy, self._torch = cupy, torch
        self._module, self._function = cache(self._compile), cache(self._find)
        self._stream_at = cache(lambda pointer: cupy.cuda.Stream.from_external(TorchStream(pointer)))

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        shape = (shape,) if isinstance(shape, int) else shape
        num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        bytes_ = self._torch.empty(max(num_bytes, 1), dtype=self._torch.uint8, device="cuda")
        memory = self._cupy.cuda.UnownedMemory(bytes_.data_ptr(), max(num_bytes, 1), bytes_, bytes_.get_device())
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Array:
        array = self.empty(shape, dtype)
        if array.nbytes:
            array.data.memset_async(byte, array.nbytes, self._stream())
        return array

    def put(self, array: Any) -> Array:
        if isinstance(array, self._cupy.ndarray):
            return array
        if isinstance(array, self._torch.Tensor):
            with self._stream():
                return self._cupy.from_dlpack(array.detach())
        host = np.ascontiguousarray(array)
        there = self.empty(host.shape, host.dtype)
        there.set(host, self._stream())
        return there

    def tensor(self, array: Array) -> Any:
        with self._stream():  # else the two libraries' streams would wait for each other
            return self._torch.utils.dlpack.from_dlpack(array)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def launch(
        self, family: str, kernel: str, num_blocks: int, arguments: Sequence[Any], defines: Defines = ()
    ) -> None:
        with self._stream():
            self._function(family, kernel, defines)((num_blocks,), (self.threads,), tuple(arguments))

    def sort(self, keys_K: Array) -> tuple[Array, Array]:
        if not len(keys_K):
            return keys_K, self.empty(0, np.int64)
        with self._stream():  # DLPack orders the two libraries' streams: both are this one
            there = self._torch.utils.dlpack.from_dlpack(keys_K)
            values, order = self._torch.sort(there, stable=True)
            return self._cupy.from_dlpack(values), self._cupy.from_dlpack(order)

    def read(self, number_1: Array) -> int:
        return int(number_1.get(stream=self._stream())[0])

    def _stream(self) -> Any:
        """Torch's current one, as CuPy's; torch keeps its streams, so a pointer stands for one."""
        return self._stream_at(self._torch.cuda.current_stream().cuda_stream)

    def _compile(self, family: str, defines: Defines) -> Any:
        return self._cupy.RawModule(code=source_of(family), options=options_of(defines), backend="nvrtc")

    def _find(self, family: str, kernel: str, defines: Defines) -> Any:
        return self._module(family, defines).get_function(kernel)
