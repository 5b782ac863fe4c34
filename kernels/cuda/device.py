"""What the launchers need of a GPU: arrays, launches, one sort, and the one way to read a number back.

Memory is torch's, so that there is one allocator; work goes to torch's current stream, so that there is one order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import numpy as np

from kernels.cuda.grid import starts_of
from kernels.cuda.sources import Defines, options_of, source_of

Array = Any  # cupy.ndarray; the tests use arrays of their own
ALIGNMENT = 256  # of arrays that travel in one block


class Device(Protocol):
    """A GPU, or what the tests put in its place."""

    threads: int  # of a block
    xp: Any  # the module of its arrays

    def on_current_stream(self) -> AbstractContextManager[object]:
        """Within it, what that module does goes to the current stream."""
        ...

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An array of any numbers."""
        ...

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Array:
        """An array of which every byte is this one."""
        ...

    def put(self, array: Any) -> Array:
        """The array on the device: copied from the host, as it is where it is there; torch's without a copy."""
        ...

    def put_all(self, arrays: Sequence[Any]) -> tuple[Array, ...]:
        """`put` for several arrays: those of the host go in one copy, without waiting."""
        ...

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Array, ...]]:
        """The host's in one copy, beside the work; work asked for after the call that it gives comes after the copy.

        From any thread.
        """
        ...

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """Begins to copy arrays to the host; the call that it gives waits for them."""
        ...

    def download_async(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """The same beside the work asked for from now on, which writes to none of them."""
        ...

    def array_of(self, tensor: Any) -> Array:
        """A torch tensor as an array here; copied where it lies elsewhere."""
        ...

    def tensor(self, array: Array) -> Any:
        """An array as a torch tensor, not copied."""
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
        """The keys ascending and their previous positions, int64; the sort is stable."""
        ...

    def read(self, *numbers_1: Array) -> list[int]:
        """Numbers that are known to the device only. Waits once, for all that was launched before."""
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
        self._cupy, self._torch, self.xp = cupy, torch, cupy
        self._module, self._function = cache(self._compile), cache(self._find)
        self._stream_at = cache(lambda pointer: cupy.cuda.Stream.from_external(TorchStream(pointer)))
        # of copies that the work does not wait for: one engine of the GPU has each way
        self._up, self._down = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]

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
        there = iter(self._copied(hosts)[0])
        return tuple(next(there) if isinstance(array, np.ndarray) else self.put(array) for array in arrays)

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Array, ...]]:
        with self._torch.cuda.stream(self._up):
            there, block = self._copied([np.ascontiguousarray(array) for array in arrays])
            arrived = self._recorded()

        def taken() -> tuple[Array, ...]:
            stream = self._torch.cuda.current_stream()
            stream.wait_event(arrived)
            block.record_stream(stream)  # else the next copy up could overwrite what is still being read
            return tuple(there)

        return taken

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        starts, num_bytes = starts_of((array.nbytes for array in arrays), ALIGNMENT)
        block = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        with self.on_current_stream():
            for array, start in zip(arrays, starts, strict=True):
                if array.nbytes:
                    bytes_ = self._cupy.ascontiguousarray(array).reshape(-1).view(np.uint8)
                    there = self._torch.utils.dlpack.from_dlpack(bytes_)
                    block[start : start + array.nbytes].copy_(there, non_blocking=True)
        arrived = self._recorded()
        forms = [(array.shape, array.dtype, array.nbytes) for array in arrays]

        def wait() -> tuple[Any, ...]:
            arrived.synchronize()
            here = block.numpy()
            return tuple(
                here[start : start + size].view(dtype).reshape(shape)
                for (shape, dtype, size), start in zip(forms, starts, strict=True)
            )

        return wait

    def download_async(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        self._down.wait_event(self._recorded())
        with self._torch.cuda.stream(self._down):
            arrive = self.fetch(arrays)
        kept = [*arrays]  # whose memory is the current stream's: not its to give away before they were copied

        def wait() -> tuple[Any, ...]:
            here = arrive()
            kept.clear()
            return here

        return wait

    def array_of(self, tensor: Any) -> Array:
        there = tensor.detach().to("cuda", non_blocking=True)
        with self._stream():
            return self._cupy.from_dlpack(there)

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

    def read(self, *numbers_1: Array) -> list[int]:
        return [int(number_1[0]) for number_1 in self.fetch(numbers_1)()]

    def _copied(self, hosts: Sequence[Any]) -> tuple[list[Array], Any]:
        """Arrays of the host on the device, in one copy on the current stream; and the tensor that they lie in."""
        starts, num_bytes = starts_of((host.nbytes for host in hosts), ALIGNMENT)
        block = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        bytes_ = block.numpy()
        for host, start in zip(hosts, starts, strict=True):
            bytes_[start : start + host.nbytes] = host.reshape(-1).view(np.uint8)
        # torch keeps the pinned block from other uses until the copy has been made
        there = block.to("cuda", non_blocking=True)
        begin = self._memory_of(there)
        return [self._cupy.ndarray(h.shape, h.dtype, begin + at) for h, at in zip(hosts, starts, strict=True)], there

    def _recorded(self) -> Any:
        """An event that is past once the current stream has done all that was asked of it so far."""
        event: Any = self._torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _allocate(self, num_bytes: int) -> Any:
        """Memory of torch's; CuPy's own allocations within `on_current_stream` come from here too."""
        return self._memory_of(self._torch.empty(max(num_bytes, 1), dtype=self._torch.uint8, device="cuda"))

    def _memory_of(self, bytes_: Any) -> Any:
        """Where a tensor's bytes begin, which live as long as that is held."""
        memory = self._cupy.cuda.UnownedMemory(bytes_.data_ptr(), bytes_.numel(), bytes_, bytes_.get_device())
        return self._cupy.cuda.MemoryPointer(memory, 0)

    def _stream(self) -> Any:
        """Torch's current stream as CuPy's; torch keeps its streams alive, so a pointer identifies one."""
        return self._stream_at(self._torch.cuda.current_stream().cuda_stream)

    def _compile(self, family: str, defines: Defines) -> Any:
        return self._cupy.RawModule(code=source_of(family), options=options_of(defines), backend="nvrtc")

    def _find(self, family: str, kernel: str, defines: Defines) -> Any:
        return self._module(family, defines).get_function(kernel)
