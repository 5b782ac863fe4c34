"""CuPy and torch.cuda without a GPU, so that what talks to them runs: memory is the host's, kernels are host C++.

Calls take the arguments that CuPy 14 and torch take, and refuse others; nothing here says that they do the same.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from springtide.kernels.cuda.sources import OPTIONS, source_of
from tests.support.gpu_emulation.device_array import ArrayModule, DeviceArray
from tests.support.gpu_emulation.simt import call, library

PRODUCED = "cuda"  # where a tensor is asked to be
FAMILY = re.compile(r'#line 1 "([a-z_]+)\.cu"')


class Stream:
    """One of torch's; the pointer tells them apart, the first one's is 0."""

    number = 0

    def __init__(self) -> None:
        self.cuda_stream = Stream.number
        Stream.number += 1

    def wait_event(self, event: "Event") -> None:
        assert event.is_recorded, "an event that was never recorded is past at once: waited for by mistake"

    def wait_stream(self, other: "Stream") -> None: ...


class Event:
    def __init__(self, *, enable_timing: bool = False) -> None:
        self.is_recorded = False

    def record(self, stream: Stream | None = None) -> None:
        self.is_recorded = True

    def synchronize(self) -> None:
        assert self.is_recorded

    def elapsed_time(self, end: "Event") -> float:
        return 1.0


class Graph:
    """Capture runs the work once; to play it does nothing."""

    def replay(self) -> None: ...


class Memory:
    """CuPy's UnownedMemory: a pointer, a size, whose it is."""

    def __init__(self, ptr: int, size: int, owner: torch.Tensor, device_id: int) -> None:
        assert ptr == owner.data_ptr()
        self.bytes = owner.numpy()
        assert self.bytes.nbytes == size


class Pointer:
    def __init__(self, memory: Any, offset: int) -> None:
        self.memory, self.offset = memory, offset

    @property
    def ptr(self) -> int:
        return int(self.memory.bytes.ctypes.data) + self.offset

    def __add__(self, more: int) -> "Pointer":
        return Pointer(self.memory, self.offset + more)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        self.memory.bytes[self.offset : self.offset + size] = value


class ArrayType(type):
    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, DeviceArray)


class Array(DeviceArray, metaclass=ArrayType):
    """cupy.ndarray(shape, dtype, memptr)."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: Pointer) -> None:
        buffer, num = memptr.memory.bytes, int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert memptr.offset + num <= buffer.nbytes
        super().__init__(np.ndarray(shape, dtype, buffer, memptr.offset))
        self.__dict__["data"] = memptr


class RawModule:
    def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
        assert backend == "nvrtc"
        assert options[: len(OPTIONS)] == OPTIONS
        pairs = (option.removeprefix("-D").split("=") for option in options[len(OPTIONS) :])
        defines = tuple((key, int(value) if value.isdigit() else value) for key, value in pairs)
        family = FAMILY.match(code)
        assert family
        assert code == source_of(family[1])
        self.functions = library(family[1], defines)

    def get_function(self, name: str) -> Callable[..., None]:
        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            call(self.functions, name, arguments, num_blocks=grid[0], threads=block[0], seed=0)

        return launch


def tensor_of(array: DeviceArray) -> torch.Tensor:
    assert array.size, "an empty array may have no address on a GPU"
    return torch.from_numpy(array.numbers)


def data_of(array: DeviceArray) -> Pointer:
    bytes_ = array.numbers.reshape(-1).view(np.uint8)
    return Pointer(SimpleNamespace(bytes=bytes_), 0)


class Cupy(ArrayModule):
    """The module."""

    ndarray, RawModule = Array, RawModule

    def __init__(self) -> None:
        external = SimpleNamespace(from_external=lambda stream: nullcontext(stream.__cuda_stream__()[1]))
        self.cuda = SimpleNamespace(
            UnownedMemory=Memory, MemoryPointer=Pointer, Stream=external, using_allocator=nullcontext
        )

    def ascontiguousarray(self, array: DeviceArray) -> DeviceArray:
        return DeviceArray(np.ascontiguousarray(array.numbers))

    def from_dlpack(self, tensor: torch.Tensor) -> DeviceArray:
        assert tensor.numel(), "an empty tensor has no address on a GPU"
        return DeviceArray(tensor.numpy())


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends there is a GPU."""
    Stream.number = 0
    stack = [Stream()]

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        stack.append(stream)
        yield
        stack.pop()

    def anywhere(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*given: Any, device: Any = None, pin_memory: bool = False, **named: Any) -> torch.Tensor:
            return make(*given, **named)

        return made

    to = torch.Tensor.to

    def moved(tensor: torch.Tensor, *given: Any, non_blocking: bool = False, **named: Any) -> torch.Tensor:
        return tensor.clone() if given == (PRODUCED,) else to(tensor, *given, **named)

    monkeypatch.setitem(__import__("sys").modules, "cupy", Cupy())
    monkeypatch.setattr(DeviceArray, "data", property(data_of), raising=False)
    for name, value in {
        "is_available": lambda: True,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda: stack[-1],
        "stream": on,
        "CUDAGraph": Graph,
        "graph": lambda graph, capture_error_mode="global": on(Stream()),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("empty", "zeros"):
        monkeypatch.setattr(torch, name, anywhere(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", tensor_of)
