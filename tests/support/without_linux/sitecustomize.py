"""Put this folder first on PYTHONPATH, and a process and its children lack what only Linux has, as on macOS.

Names of the standard library, functions of the C library asked for by ctypes, and /proc. With WITHOUT_ROCKSDB also
rocksdb-py, as on Linux on aarch64. What libraries call below Python remains.
"""

import ctypes
import mmap
import os
import resource
import select
import socket
import sys
from importlib.machinery import PathFinder
from typing import Any

ABSENT = {
    os: "copy_file_range eventfd memfd_create MFD_CLOEXEC pidfd_open posix_fadvise POSIX_FADV_DONTNEED posix_fallocate "
    "sched_getaffinity sched_setaffinity splice O_DIRECT O_TMPFILE",
    mmap: "MADV_HUGEPAGE MADV_DONTFORK MAP_POPULATE",
    resource: "RUSAGE_THREAD prlimit",
    select: "epoll",
    socket: "SOCK_SEQPACKET SO_BINDTODEVICE",
}
ABSENT_FUNCTIONS = frozenset(
    ["inotify_add_watch", "inotify_init1", "madvise64", "mallopt", "prctl", "statfs64", "sync_file_range", "syscall"]
)

for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


class CLibrary(ctypes.CDLL):
    """The C library, asked for as `CDLL(None)`."""

    def __getattr__(self, name: str) -> object:
        if self._name is None and name in ABSENT_FUNCTIONS:
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = CLibrary  # type: ignore[misc]


def refuse_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(arguments[0])


sys.addaudithook(refuse_proc)


class WithoutRocksDB(PathFinder):
    """Finds what is installed, but for rocksdb-py."""

    @classmethod
    def find_spec(cls, fullname: str, *rest: Any) -> Any:
        return None if fullname == "rocksdbpy" else super().find_spec(fullname, *rest)


if "WITHOUT_ROCKSDB" in os.environ:
    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutRocksDB
