"""How the scanner's functions are compiled."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


# without `_nrt` nothing may be allocated, but nobody counts references either: counting those of every array at every
# call, atomically, took nine tenths of the time (0.13 M messages a second against 1.2 M)
OPTIONS = {"nogil": True, "_nrt": False, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """For functions that are called from compiled ones only; they allocate nothing."""
    wrapped: Function = njit(**OPTIONS)(function)
    return wrapped


def inlined(function: Function) -> Function:
    """The same, for hot functions: an array is seven arguments of a call, a tuple of arrays seventy."""
    wrapped: Function = njit(forceinline=True, **OPTIONS)(function)
    return wrapped
