"""Kernels in several variants: with unique names where they differ in what they close over, and holding the GIL.

Numba names what it compiles, and the environment that holds its constants, by qualified name, argument types and a
number that counts compilations of one process. Two variants cached by two processes may so have one name: the second
to be loaded uses the first one's environment, and fails.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from springtide.kernels.njit import njit

Function = TypeVar("Function", bound=Callable[..., object])


def named_specialization(function: Function, *values: object) -> Function:
    """Return the function with `values` appended to its qualified name: they must distinguish it from its siblings."""
    function.__qualname__ = "_".join([function.__qualname__, *map(str, values)])
    return function


def holding_gil(kernel: Any) -> Any:
    """Return a compiled function that calls a kernel, which releases the GIL, and holds it.

    For little work: to be given the GIL back takes longer than that. Numba's cache refuses a function that closes over
    another, and needs a file, so the call is written as text in the kernel's own module.
    """
    function = kernel.py_func
    names, name = ", ".join(inspect.signature(function).parameters), f"{function.__name__}_holding_gil"
    text = f"def {name}({names}):\n    return {function.__name__}({names})\n"
    made: dict[str, Any] = {}
    exec(compile(text, function.__code__.co_filename, "exec"), function.__globals__, made)
    return njit(cache=True)(made[name])
