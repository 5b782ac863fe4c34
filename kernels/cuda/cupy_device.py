"""One NVIDIA GPU through CuPy.

Memory is torch's, so that there is one allocator; work goes to torch's current stream, so that there is one order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.pinned_transfers import PinnedTransfers
from springtide.kernels.cuda.sources import Defines, options_of, source_of


class TorchStream:
    """A stream in the form CUDA libraries exchange; torch's own streams support the protocol from 2.10 on."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


class CupyDevice:
    """The GPU that torch has selected; ValueError if there is none or CuPy is missing."""

    threads = 256

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise ValueError(
                "the device 'cuda' needs CuPy: install springtide[gpu], or use the device 'cpu'"
            ) from error
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "the device 'cuda' needs an NVIDIA GPU, its driver and a CUDA build of PyTorch: "
                f"torch {torch.__version__} sees none here; use the device 'cpu'"
            )
        self._cupy, self._torch, self.xp = cupy, torch, cupy
        self._module, self._function = cache(self._compile), cache(self._find)
        self._stream_at = cache(lambda pointer: cupy.cuda.Stream.from_external(TorchStream(pointer)))
        self._transfers = PinnedTransfers(torch, self._bytes_of, self._array_at)

    @contextmanager
    def on_current_stream(self) -> Iterator[None]:
        with self._stream(), self._cupy.cuda.using_allocator(self._allocate):
            yield

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        shape = (shape,) if isinstance(shape, int) else shape
        num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._cupy.ndarray(shape, dtype, self._allocate(num_bytes))

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Array:
        array = self.empty(shape, dtype)
        if array.nbytes:
            array.data.memset_async(byte, array.nbytes, self._stream())
        return array

    def put(self, array: Any) -> Array:
        if isinstance(array, self._cupy.ndarray):
            return array
        if isinstance(array, self._torch.Tensor):
            return self.array_of(array)
        return self.put_all((np.asarray(array),))[0]

    def put_all(self, arrays: Sequence[Any]) -> tuple[Array, ...]:
        hosts = [np.ascontiguousarray(array) for array in arrays if isinstance(array, np.ndarray)]
        if not hosts:
            return tuple(map(self.put, arrays))
        there = iter(self._transfers.upload(hosts)[0])
        return tuple(next(there) if isinstance(array, np.ndarray) else self.put(array) for array in arrays)

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Array, ...]]:
        return self._transfers.upload_async(arrays)

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        return self._transfers.fetch(arrays)

    def download_async(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        return self._transfers.download_async(arrays)

    def array_of(self, tensor: Any) -> Array:
        there = tensor.detach().to("cuda", non_blocking=True)
        if not there.numel():  # it has no address, and DLPack asks CUDA what is there
            return self.empty(tuple(there.shape), str(there.dtype).removeprefix("torch."))
        with self._stream():
            return self._cupy.from_dlpack(there)

    def tensor(self, array: Array) -> Any:
        if not array.size:
            return self._torch.empty(array.shape, dtype=getattr(self._torch, array.dtype.name), device="cuda")
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

    def read(self, *numbers_1: Array) -> list[int]:
        return [int(number_1[0]) for number_1 in self.fetch(numbers_1)()]

    def _bytes_of(self, array: Array) -> Any:
        """The array's bytes as a torch tensor."""
        with self.on_current_stream():
            bytes_ = self._cupy.ascontiguousarray(array).reshape(-1).view(np.uint8)
            return self._torch.utils.dlpack.from_dlpack(bytes_)

    def _array_at(self, bytes_: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array inside a torch tensor of bytes."""
        return self._cupy.ndarray(shape, dtype, self._memory_of(bytes_) + offset)

    def _allocate(self, num_bytes: int) -> Any:
        """Allocate from torch; CuPy's own allocations within `on_current_stream` come from here too."""
        return self._memory_of(self._torch.empty(max(num_bytes, 1), dtype=self._torch.uint8, device="cuda"))

    def _memory_of(self, bytes_: Any) -> Any:
        """A tensor's memory for CuPy; it keeps the tensor alive."""
        memory = self._cupy.cuda.UnownedMemory(bytes_.data_ptr(), bytes_.numel(), bytes_, bytes_.get_device())
        return self._cupy.cuda.MemoryPointer(memory, 0)

    def _stream(self) -> Any:
        """Torch's current stream as CuPy's; torch keeps its streams alive, so a pointer identifies one."""
        return self._stream_at(self._torch.cuda.current_stream().cuda_stream)

    def _compile(self, family: str, defines: Defines) -> Any:
        return self._cupy.RawModule(code=source_of(family), options=options_of(defines), backend="nvrtc")

    def _find(self, family: str, kernel: str, defines: Defines) -> Any:
        return self._module(family, defines).get_function(kernel)
