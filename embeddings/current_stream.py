"""A decorator that runs a table's methods on torch's current CUDA stream, after all work queued there before."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from springtide.kernels.ops import Ops

P = ParamSpec("P")
R = TypeVar("R")


class HasOps(Protocol):
    ops: Ops


T = TypeVar("T", bound=HasOps)


def on_current_stream(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Run the method within `self.ops.on_current_stream()`."""

    @wraps(method)
    def on_stream(self: T, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.ops.on_current_stream():
            return method(self, *arguments, **named)

    return on_stream
