"""Unique names for functions that differ only in what they close over.

Numba names what it compiles, and the environment that holds its constants, by qualified name, argument types and a
number that counts compilations of one process. Two variants cached by two processes may so have one name: the second
to be loaded uses the first one's environment, and fails.
"""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def named_specialization(function: Function, *values: object) -> Function:
    """Return the function with `values` appended to its qualified name: they must distinguish it from its siblings."""
    function.__qualname__ = "_".join([function.__qualname__, *map(str, values)])
    return function
