"""What a table does to arrays of its device comes after what was asked of the device before: torch's current stream."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from kernels.ops import Ops

P = ParamSpec("P")
R = TypeVar("R")


class HasOps(Protocol):
    ops: Ops


T = TypeVar("T", bound=HasOps)


def on_current_stream(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """The method, all of it on that stream."""

    @wraps(method)
    def ordered(self: T, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.ops.on_current_stream():
            return method(self, *arguments, **named)

    return ordered
