"""Waits until something in a folder has changed, or the time is over: inotify where there is one, else the clock alone.

Who waits looks for himself: another host's writes to a shared folder, and a folder that is not there yet, tell nothing.
"""

import ctypes
import os
import select
import time
import weakref
from pathlib import Path

# of inotify(7): flags of the descriptor are those of open
MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
EVENT_BYTES = 1 << 16


class DirectoryWatcher:
    """News of one folder, for one thread; what the kernel gives for it is asked for by the first wait."""

    def __init__(self, path: str | Path) -> None:
        self._path = os.fsencode(path)
        self._descriptor: int | None = None
        self._is_watching = self._has_asked = False

    def wait(self, seconds: float) -> None:
        """Return once a file in the folder was made, moved there or written to, at the latest after the time."""
        if not self._has_asked:
            self._ask()
        descriptor = self._descriptor
        if descriptor is None or not (self._is_watching or self._watch(descriptor)):
            time.sleep(seconds)
            return
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(descriptor, EVENT_BYTES)

    def _ask(self) -> None:
        self._has_asked, self._descriptor = True, _inotify()
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    def _watch(self, descriptor: int) -> bool:
        add = ctypes.CDLL(None).inotify_add_watch
        self._is_watching = add(descriptor, self._path, MODIFY | MOVED_TO | CREATE) >= 0
        return self._is_watching


def _inotify() -> int | None:
    init = getattr(ctypes.CDLL(None), "inotify_init1", None)
    descriptor = -1 if init is None else int(init(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None  # none there, or as many as one user may have
