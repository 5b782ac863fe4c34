"""The interface between launchers and a GPU: arrays, transfers, launches, a sort, and reading numbers back."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from springtide.kernels.cuda.sources import Defines

Array = Any  # cupy.ndarray; the tests use arrays of their own


class Device(Protocol):
    """A GPU, or the emulator that tests use."""

    threads: int  # of a block
    xp: Any  # the module of its arrays

    def on_current_stream(self) -> AbstractContextManager[object]:
        """A context in which calls of `xp` go to the current stream."""
        ...

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An uninitialized array."""
        ...

    def filled(self, shape: int | tuple[int, ...], dtype: Any, byte: int) -> Array:
        """An array whose bytes all have this value."""
        ...

    def put(self, array: Any) -> Array:
        """The array on the device: copied from the host; device arrays and torch tensors are not copied."""
        ...

    def put_all(self, arrays: Sequence[Any]) -> tuple[Array, ...]:
        """`put` for several arrays: those of the host go in one copy, without waiting."""
        ...

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Array, ...]]:
        """Start copying host arrays, in one transfer on a stream of its own. From any thread.

        Calling the result returns device arrays; later work on the current stream is ordered after the copy.
        """
        ...

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """Start copying arrays to the host on the current stream; calling the result waits and returns them."""
        ...

    def download_async(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """`fetch` on a stream of its own, beside later work, which must not write to the arrays."""
        ...

    def array_of(self, tensor: Any) -> Array:
        """A torch tensor as an array; copied only if it is not on this device."""
        ...

    def tensor(self, array: Array) -> Any:
        """An array as a torch tensor, without a copy."""
        ...

    def address(self, array: Array) -> int:
        """The address of the first element."""
        ...

    def launch(
        self, family: str, kernel: str, num_blocks: int, arguments: Sequence[Any], defines: Defines = ()
    ) -> None:
        """Launch a kernel of a source file; arguments are arrays and numpy scalars of the kernel's types."""
        ...

    def sort(self, keys_K: Array) -> tuple[Array, Array]:
        """The keys ascending and their previous positions, int64; the sort is stable."""
        ...

    def read(self, *numbers_1: Array) -> list[int]:
        """Copy numbers from arrays of one element. Waits once, for all earlier launches."""
        ...
