"""One NVIDIA GPU through CuPy.

Memory is torch's, so that there is one allocator; work goes to torch's current stream, so that there is one order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.sources import Defines, options_of, source_of

ALIGNMENT = 256  # of arrays that travel in one block


def starts_of(sizes: Iterable[int], alignment: int) -> tuple[list[int], int]:
    """Where things of so many bytes begin in one block, each at a multiple of `alignment`; the block's bytes."""
    ends = list(accumulate((-(-size // alignment) * alignment for size in sizes), initial=0))
    return ends[:-1], max(ends[-1], 1)


class PinnedTransfers:
    """Copies between host arrays and a device's arrays.

    `bytes_of` returns an array's bytes as a torch tensor, on the current stream.
    `array_at(bytes, offset, shape, dtype)` makes a device array inside a torch tensor of bytes.
    """

    def __init__(
        self,
        torch: Any,
        bytes_of: Callable[[Array], Any],
        array_at: Callable[[Any, int, tuple[int, ...], Any], Array],
    ) -> None:
        self._torch, self._bytes_of, self._array_at = torch, bytes_of, array_at
        # a GPU has one copy engine each way
        self._up, self._down = torch.cuda.Stream(), torch.cuda.Stream()

    def upload(self, hosts: Sequence[Any]) -> tuple[list[Array], Any]:
        """Copy contiguous host arrays in one transfer on the current stream; the arrays, and the tensor under them."""
        starts, num_bytes = starts_of((host.nbytes for host in hosts), ALIGNMENT)
        block = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        bytes_ = block.numpy()
        for host, start in zip(hosts, starts, strict=True):
            bytes_[start : start + host.nbytes] = host.reshape(-1).view(np.uint8)
        # torch keeps the pinned block from other uses until the copy has been made
        there = block.to("cuda", non_blocking=True)
        return [self._array_at(there, at, h.shape, h.dtype) for h, at in zip(hosts, starts, strict=True)], there

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Array, ...]]:
        """`upload` beside the work; calling the result orders later work after the copy and returns the arrays."""
        with self._torch.cuda.stream(self._up):
            there, block = self.upload([np.ascontiguousarray(array) for array in arrays])
            arrived = self._recorded()

        def finish() -> tuple[Array, ...]:
            stream = self._torch.cuda.current_stream()
            stream.wait_event(arrived)
            block.record_stream(stream)  # else the next upload could overwrite what is still being read
            return tuple(there)

        return finish

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """Start copying arrays to the host on the current stream; calling the result waits and returns them."""
        starts, num_bytes = starts_of((array.nbytes for array in arrays), ALIGNMENT)
        block = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        for array, start in zip(arrays, starts, strict=True):
            if array.nbytes:
                block[start : start + array.nbytes].copy_(self._bytes_of(array), non_blocking=True)
        arrived = self._recorded()
        layouts = [(array.shape, array.dtype, array.nbytes) for array in arrays]

        def wait() -> tuple[Any, ...]:
            arrived.synchronize()
            here = block.numpy()
            return tuple(
                here[start : start + size].view(dtype).reshape(shape)
                for (shape, dtype, size), start in zip(layouts, starts, strict=True)
            )

        return wait

    def download_async(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """`fetch` beside the work asked for from now on, which must not write to the arrays."""
        self._down.wait_event(self._recorded())
        with self._torch.cuda.stream(self._down):
            arrive = self.fetch(arrays)
        kept = [*arrays]  # the current stream must not reuse their memory before they are copied

        def wait() -> tuple[Any, ...]:
            here = arrive()
            kept.clear()
            return here

        return wait

    def _recorded(self) -> Any:
        """An event that is past once the current stream has done all earlier work."""
        event: Any = self._torch.cuda.Event()
        event.record()
        return event


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
