"""`njit`, by which every kernel is compiled: Numba's, whose cache is preceded by the store of the installed wheel.

It sets the cache of what it decorates, and nothing else: a user's own functions are compiled as if it were not here.
"""

import logging
import pickle
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numba
from numba.core.caching import FunctionCache, NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from springtide.kernels.kernel_store import COMPILING, entry_name, installed_store

logger = logging.getLogger(__name__)


class Recording:
    """Keeps what is compiled, and notes what Python calls: kernels that only kernels call are part of these."""

    def __init__(self) -> None:
        self._compiled: dict[str, bytes] = {}
        self._called: set[str] = set()

    def kernels(self) -> dict[str, bytes]:
        """Those that Python has called, by name."""
        return {name: data for name, data in self._compiled.items() if name in self._called}

    def keep(self, name: str, compiled: CompileResult) -> None:
        """Keep a compiled kernel by its `entry_name`."""
        if not compiled.library.has_dynamic_globals:  # addresses of this process
            self._compiled[name] = dumps(compiled._reduce())

    def watch(self, dispatcher: Any, name_of: Callable[[Any], str]) -> None:
        """Note with which types Python calls it. `name_of`: its `entry_name` for types.

        Every call reaches `compile_for_args`, because the table in which Numba looks for compiled signatures first is
        kept empty.
        """
        compile_types, compile_for_call = dispatcher.compile, dispatcher._compile_for_args
        is_call = False

        def compile_for_args(*values: Any) -> Any:
            nonlocal is_call
            is_call = True
            return compile_for_call(*values)

        def compile_or_find(types: Any) -> Any:
            nonlocal is_call
            if is_call:
                self._called.add(name_of(types))
                is_call = False
            return compile_types(types)

        def add_overload(compiled: CompileResult) -> None:
            dispatcher.overloads[tuple(compiled.signature.args)] = compiled

        dispatcher._compile_for_args, dispatcher.compile = compile_for_args, compile_or_find
        dispatcher.add_overload = add_overload


recording: Recording | None = None


def record_kernels() -> Recording:
    """From now on record what this process compiles, and load nothing: called before any kernel is imported."""
    global recording
    recording = Recording()
    return recording


def njit(*functions: Callable[..., Any], **options: Any) -> Any:
    """numba.njit with the same options, with or without a function."""
    if not functions:
        return lambda decorated: njit(decorated, **options)
    (function,) = functions
    uses_cache = options.pop("cache", False)
    compiled: Any = numba.njit(**options)(function)
    if uses_cache and hasattr(compiled, "py_func"):  # with NUMBA_DISABLE_JIT it is the function itself
        name_of = partial(entry_name, function, options)
        compiled._cache = KernelCache(function, name_of)
        if recording is not None:
            recording.watch(compiled, name_of)
    return compiled


class KernelCache:
    """What Numba asks for the compiled forms of one function: from the store, else from Numba's own cache on disk."""

    def __init__(self, function: Callable[..., Any], name_of: Callable[[Any], str]) -> None:
        """`name_of`: its `entry_name` for types."""
        self._function, self._name_of = function, name_of

    # made when it is needed first: it writes a file to find out where it may
    @cached_property
    def _on_disk(self) -> FunctionCache | NullCache:
        try:
            return FunctionCache(self._function)
        except RuntimeError as error:  # neither the installation nor the home may be written
            logger.debug("every process compiles", extra={"reason": str(error)})
            return NullCache()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        if recording is not None:
            return None
        store = installed_store().store
        if store is None or (data := store.get(self._name_of(sig))) is None:
            found = self._on_disk.load_overload(sig, target_context)
            if found is None:
                say_that_kernels_are_compiled()
                logger.debug("kernel", extra={"compiled": self._function.__qualname__, "types": str(sig)})
            return found
        target_context.refresh()
        return CompileResult._rebuild(target_context, *pickle.loads(data))

    def save_overload(self, sig: Any, data: Any) -> None:
        if recording is not None:
            recording.keep(self._name_of(sig), data)
            return
        self._on_disk.save_overload(sig, data)

    @property
    def cache_path(self) -> Any:
        return self._on_disk.cache_path

    def enable(self) -> None:
        self._on_disk.enable()

    def disable(self) -> None:
        self._on_disk.disable()

    def flush(self) -> None:
        self._on_disk.flush()


@cache
def say_that_kernels_are_compiled() -> None:
    """Log once a process why it compiles, which takes seconds that a user would wonder about."""
    choice = installed_store()
    if choice.store is None:
        reason = choice.reason
    else:
        reason = f"those that came for {choice.reason} lack a dimension or a type that is used here"
    logger.info(f"{COMPILING}, which later starts need not", extra={"reason": reason})
