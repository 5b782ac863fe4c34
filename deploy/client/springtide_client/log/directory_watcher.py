"""Wait until something in a folder changes: inotify on Linux, elsewhere a plain sleep.

A wait may end early or miss a change (writes by other hosts on a shared file system, a folder that is not there yet),
so callers look for themselves. Each look takes the GIL from the calls beside it: where no change can be missed, because
the file system belongs to this machine alone, they look less often.
"""

import ctypes
import os
import select
import sys
import time
import weakref
from pathlib import Path

# of inotify(7), whose descriptor takes the flags of open(2)
MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
EVENT_BYTES = 1 << 16
# of statfs(2): ext4, xfs, btrfs, tmpfs, zfs, f2fs, bcachefs
LOCAL_FILE_SYSTEMS = {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E}
LOCAL_SECONDS = 0.05  # the least that a wait lasts there if nothing happens


class DirectoryWatcher:
    """Watches one folder, for one thread. Kernel resources are allocated by the first wait."""

    def __init__(self, path: str | Path) -> None:
        self._path = os.fsencode(path)
        self._descriptor: int | None = None
        self._is_watching = self._is_started = self._is_local = False

    def wait(self, seconds: float) -> None:
        """Return once a file in the folder is created, moved there or written to, at the latest after `seconds`.

        A wait of more than 0 lasts at least LOCAL_SECONDS where every change is seen.
        """
        if not self._is_started:
            self._start()
        descriptor = self._descriptor
        if descriptor is None or not (self._is_watching or self._watch(descriptor)):
            time.sleep(seconds)
            return
        if self._is_local and seconds > 0:
            seconds = max(seconds, LOCAL_SECONDS)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(descriptor, EVENT_BYTES)

    def _start(self) -> None:
        self._is_started, self._descriptor = True, _inotify()
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    def _watch(self, descriptor: int) -> bool:
        add = ctypes.CDLL(None).inotify_add_watch
        self._is_watching = add(descriptor, self._path, MODIFY | MOVED_TO | CREATE) >= 0
        self._is_local = self._is_watching and _file_system(self._path) in LOCAL_FILE_SYSTEMS
        return self._is_watching


def _inotify() -> int | None:
    """Return a new inotify descriptor; None where the system has no inotify, or the user has too many."""
    init = getattr(ctypes.CDLL(None), "inotify_init1", None)
    descriptor = -1 if init is None else int(init(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None


def _file_system(path: bytes) -> int | None:
    """Return the type of the file system, statfs's first field; None where it is not known."""
    statfs = getattr(ctypes.CDLL(None), "statfs", None)
    result = ctypes.create_string_buffer(1024)  # larger than the structure on any system
    if statfs is None or ctypes.sizeof(ctypes.c_long) != 8 or statfs(path, result) != 0:
        return None
    return int.from_bytes(result.raw[:8], sys.byteorder)
