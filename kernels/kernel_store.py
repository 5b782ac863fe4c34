"""Compiled kernels that travel in the wheel: one file for each level of CPU, made by `app/tools/compile_kernels.py`.

A store's key is what a kernel is on any machine: its name, its code, what it closes over, Numba's options and the types
it is called with. A store is read only if Numba, llvmlite, NumPy's major version, Python, platform and the sources are
those it was built from, and LLVM says that this CPU and system have every feature of its level. Otherwise Numba
compiles for this CPU.
"""

import hashlib
import json
import logging
import os
import platform
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

# levels and their features in LLVM's words, the best first. Features are named one by one: to the name of a CPU alone
# Numba adds the features of the machine that it compiles on
X86_64_V2 = ("cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
X86_64_V3 = (*X86_64_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
X86_64_V4 = (*X86_64_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # by the machine's name
    "x86_64": {"x86-64-v4": X86_64_V4, "x86-64-v3": X86_64_V3, "x86-64-v2": X86_64_V2},
    "aarch64": {"generic": ("fp-armv8", "neon")},
}
FOLDER = Path(__file__).parent / "stores"  # in an installed wheel; a checkout has none
MANIFEST = "manifest.json"
COMPILING = "compiling kernels"  # how the line begins by which a process says that it compiles some
NO_STORES = "none came with this installation"
# numba.config's options that change what is generated; a store is made without them
CODE_OPTIONS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "DISABLE_JIT", "CPU_NAME", "CPU_FEATURES")


class KernelStore:
    """One file of compiled kernels; read lazily, from any thread."""

    def __init__(self, path: Path) -> None:
        """OSError, ValueError, KeyError or zipfile.BadZipFile if the file is not a store."""
        self._zip = zipfile.ZipFile(path)
        self.manifest: dict[str, Any] = json.loads(self._zip.read(MANIFEST))
        self._names = frozenset(self._zip.namelist())

    def __len__(self) -> int:
        return len(self._names) - 1

    def get(self, name: str) -> bytes | None:
        """The pickled kernel of this name, or None."""
        try:
            return self._zip.read(name) if name in self._names else None
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            logger.warning("a compiled kernel is damaged", extra={"kernel": name, "reason": str(error)})
            return None

    def kernels(self) -> dict[str, bytes]:
        """Every kernel by its name."""
        return {name: self._zip.read(name) for name in self._names - {MANIFEST}}


class Choice(NamedTuple):
    """The store that fits this process, or the reason why there is none."""

    store: KernelStore | None
    reason: str  # of a store: its level

    @property
    def text(self) -> str:
        """What `springtide check` prints."""
        if self.store is None:
            return f"compiled here when first used: {self.reason}"
        return f"{len(self.store)} compiled for {self.reason} came with the wheel"

    @property
    def cpu(self) -> str:
        """What kernels are compiled for: a store's level, or LLVM's name of this CPU."""
        if self.store is not None:
            return self.reason
        import llvmlite.binding as llvm

        return str(llvm.get_host_cpu_name())


@cache
def installed_store() -> Choice:
    """The best store of this installation that fits; looked for once a process."""
    choice = choose(FOLDER, level_features())
    logger.debug("kernels", extra={"source": choice.text})
    return choice


# a forked worker opens the file itself: its position would be shared with the parent and all siblings
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=installed_store.cache_clear)


def level_features() -> Mapping[str, tuple[str, ...]]:
    """The levels of this kind of machine, the best first."""
    return LEVELS.get(platform.machine(), {})


def choose(folder: Path, levels: Mapping[str, Iterable[str]]) -> Choice:
    """The store of the best level that fits this machine, this Python and these sources."""
    from numba import config

    if not folder.is_dir():
        return Choice(None, NO_STORES)
    if options := [name for name in CODE_OPTIONS if getattr(config, name, None)]:
        return Choice(None, f"NUMBA_{options[0]} is set")
    reasons = []
    for level, features in levels.items():
        if not (path := folder / f"{level}.zip").exists():
            continue
        if lacking := missing_features(features):
            reasons.append(f"{level}: this CPU lacks {' '.join(lacking)}")
            continue
        try:
            store = KernelStore(path)
            different = differences(store.manifest)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            reasons.append(f"{level}: it is damaged ({error})")
            continue
        if different:
            reasons.append(f"{level}: {different}")
        else:
            return Choice(store, level)
    return Choice(None, "; ".join(reasons) or f"none for {platform.machine()}")


def missing_features(features: Iterable[str]) -> list[str]:
    """Those that this CPU lacks, or whose registers this system does not save."""
    import llvmlite.binding as llvm

    here = llvm.get_host_cpu_features()
    return [name for name in features if not here.get(name, False)]


def differences(manifest: Mapping[str, Any]) -> str:
    """What was another when the store was made; empty if nothing was."""
    built, here = manifest["built_with"], built_with()
    found = [f"made with {name} {built.get(name)}, here is {value}" for name, value in here.items()]
    found = [text for text, (name, value) in zip(found, here.items(), strict=True) if built.get(name) != value]
    if not found and manifest["sources"] != sources_digest():
        found.append("the sources were changed")
    return "; ".join(found)


def built_with() -> dict[str, str]:
    """What compiled kernels depend on beside sources and CPU."""
    import llvmlite
    import numba
    import numpy as np

    return {
        "Numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "NumPy": np.__version__.partition(".")[0],
        "Python": f"{sys.implementation.cache_tag}{sys.abiflags}",
        "platform": f"{sys.platform}-{platform.machine()}",
    }


@cache
def sources_digest() -> str:
    """Digest of every source that a kernel may be made of: names and bytes, without times and folders.

    Those are kernels, stream and the constants of springtide_client.
    """
    import springtide_client

    own = Path(__file__).parent
    digest = hashlib.sha256()
    for folder in (own, own.parent / "stream", Path(springtide_client.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def entry_name(function: Callable[..., Any], options: Mapping[str, Any], signature: object) -> str:
    """Module, name, code, closure, options of njit and types, as one string that is the same on every machine.

    TypeError if the function closes over, or an option is, what has no text that is the same on every machine.
    """
    free = [plain(cell.cell_contents) for cell in function.__closure__ or ()]
    chosen = [(name, plain(options[name])) for name in sorted(options)]
    content = function.__code__.co_code + repr((free, chosen, signature)).encode()
    return f"{function.__module__}.{function.__qualname__}:{hashlib.sha256(content).hexdigest()[:24]}"


def plain(value: Any) -> object:
    """Numbers and texts as they are; functions by name, as the digest covers their sources."""
    function = getattr(value, "py_func", value)
    if callable(function) and hasattr(function, "__qualname__"):
        if getattr(function, "__closure__", None):
            raise TypeError(f"a kernel closes over {function.__qualname__}, which closes over values of its own")
        return f"{function.__module__}.{function.__qualname__}"
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if getattr(value, "ndim", 0):
        raise TypeError("a kernel closes over an array, whose text is not its whole content")
    if isinstance(value, (bool, int, float, str, bytes)) or value is None or hasattr(value, "dtype"):
        return f"{type(value).__name__}:{value!r}"
    raise TypeError(f"a kernel closes over {value!r}, which has no name that holds on another machine")


def write_store(path: Path, kernels: Mapping[str, bytes]) -> None:
    """Write kernels by name; equal kernels make an equal file."""
    manifest = {"built_with": built_with(), "sources": sources_digest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in {MANIFEST: json.dumps(manifest).encode(), **dict(sorted(kernels.items()))}.items():
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    os.replace(unfinished, path)
