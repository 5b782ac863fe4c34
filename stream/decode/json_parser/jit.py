"""Numba's options and decorators for the JSON parser."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


# without `_nrt` nothing may be allocated, and no references are counted: counting those of every array at every call,
# atomically, took nine tenths of the time
OPTIONS = {"nogil": True, "_nrt": False, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Compile a function that only compiled functions call; it must not allocate."""
    wrapped: Function = njit(**OPTIONS)(function)
    return wrapped


def inlined(function: Function) -> Function:
    """Compile a hot function and inline it: an array is seven arguments of a call, a tuple of arrays seventy."""
    wrapped: Function = njit(forceinline=True, **OPTIONS)(function)
    return wrapped
