"""Arrays that stand in for CuPy's in tests: as strict as those about whose memory is whose, and counting waits.

What CuPy refuses is refused: an array of the host among the arguments, or one taken for an array of the host. What
makes the host wait for a GPU is counted: copies back, numbers read, lengths that depend on values.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

GARBAGE = 0xAB  # fresh memory holds this
FENCE, FENCE_BYTES = 0xC5, 128  # bytes before and behind an array
SAME = frozenset(  # of numpy, as CuPy has them
    [
        "arange",
        "argsort",
        "ascontiguousarray",
        "concatenate",
        "count_nonzero",
        "cumsum",
        "empty",
        "full",
        "isnan",
        "maximum",
        "minimum",
        "ones",
        "searchsorted",
        "sort",
        "where",
        "zeros",
    ]
)
WAITING = frozenset({"flatnonzero", "unique"})
METHODS = frozenset({"all", "any", "astype", "copy", "max", "min", "reshape", "sum", "view"})
waits = [0]  # how often the host would have waited for the GPU


class DeviceArray(NDArrayOperatorsMixin):
    """Device memory; every array taken from it is surrounded by fences."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: Any, fences: tuple[Any, ...] = ()) -> None:
        self.numbers, self.fences = numbers, fences

    @staticmethod
    def filled(shape: int | tuple[int, ...], dtype: Any, byte: int) -> "DeviceArray":
        shape = (shape,) if isinstance(shape, int) else shape
        num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        bytes_ = np.full(num_bytes + 3 * FENCE_BYTES, FENCE, np.uint8)
        start = -bytes_.ctypes.data % 128 + FENCE_BYTES  # aligned as a GPU's allocator aligns
        bytes_[start : start + num_bytes] = byte
        numbers = bytes_[start : start + num_bytes].view(dtype).reshape(shape)
        return DeviceArray(numbers, (bytes_[:start], bytes_[start + num_bytes :]))

    @staticmethod
    def of(host: Any) -> "DeviceArray":
        """A copy on the device."""
        there = DeviceArray.filled(host.shape, host.dtype, GARBAGE)
        there.numbers[...] = host
        return there

    def get(self) -> Any:
        """A copy on the host."""
        waits[0] += 1
        return self.numbers.copy()

    def tolist(self) -> Any:
        return self.get().tolist()

    def item(self) -> Any:
        return self.get().item()

    __int__ = __index__ = __float__ = __bool__ = lambda self: self.get().item()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "flags"):
            return getattr(self.numbers, name)
        if name in METHODS:
            return lambda *given, **named: wrapped(self, getattr(self.numbers, name)(*unwrapped(given), **named))
        raise AttributeError(f"the tests' device arrays have no {name!r}: CuPy may")

    def __getitem__(self, key: Any) -> "DeviceArray":
        asked = unwrapped(key if isinstance(key, tuple) else (key,))
        waits[0] += any(getattr(part, "dtype", None) == np.bool_ for part in asked)
        return wrapped(self, self.numbers[tuple(asked)])

    def __setitem__(self, key: Any, value: Any) -> None:
        asked = unwrapped(key if isinstance(key, tuple) else (key,))
        self.numbers[tuple(asked)] = unwrapped([value])[0]

    def __array__(self, *given: Any, **named: Any) -> Any:
        raise TypeError("an array of the device was taken for one of the host: fetch it")

    def __array_function__(self, function: Any, *given: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was given an array of the device: take the function of its xp")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **named: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        if out:
            named["out"] = tuple(unwrapped(out))
        result = ufunc(*unwrapped(inputs), **named)
        return out[0] if out else wrapped(self, result)


class ArrayModule:
    """Those functions of CuPy that tables use; they give arrays of the device."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in SAME | WAITING:
            raise AttributeError(f"the tests' device has no {name!r}: CuPy may")

        def call(*given: Any, **named: Any) -> Any:
            waits[0] += name in WAITING
            result = getattr(np, name)(*unwrapped(given), **named)
            return tuple(map(DeviceArray.of, result)) if isinstance(result, tuple) else DeviceArray.of(result)

        return call


def unwrapped(given: Any) -> list[Any]:
    """Numpy's arrays in place of the device's; TypeError where one is the host's."""
    numbers = []
    for part in given:
        if isinstance(part, list | tuple):
            numbers.append(type(part)(unwrapped(part)))
            continue
        if isinstance(part, np.ndarray):
            raise TypeError(f"an array of the host, {part.dtype} {part.shape}, among those of the device: put it there")
        numbers.append(part.numbers if isinstance(part, DeviceArray) else part)
    return numbers


def wrapped(source: DeviceArray, numbers: Any) -> DeviceArray:
    """What numpy made of an array: a view of it within its fences, or fresh memory."""
    if isinstance(numbers, np.ndarray) and np.shares_memory(numbers, source.numbers):
        return DeviceArray(numbers, source.fences)
    return DeviceArray.of(np.asarray(numbers))
