"""Priorities of work that must not be felt by others: of a whole process, and of threads beside the learning one."""

import ctypes
import os
import platform
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

LOWEST_NICENESS = 19  # the nicest
THREAD_NICENESS = 10  # of threads beside the learning one: it goes before them where cores are few
AUTOGROUP = Path("/proc/self/autogroup")
SHORT_SLICE_NS = 100_000  # the least that Linux takes
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # the numbers of the system call, which libc may have no name for
ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority; runtime (the slice), deadline, period


def yield_to_others() -> None:
    """From now on this process runs where nobody else wants the processor; it cannot take that back.

    Where Linux schedules sessions instead of processes, niceness counts only within one: a process that leads a session
    of its own makes that nice too. To be called before it starts threads.
    """
    os.nice(LOWEST_NICENESS)
    take_short_slices()
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(LOWEST_NICENESS))


def yield_to_learning() -> None:
    """From now on this thread works in the gaps that the learning threads leave, as long as there are any.

    Linux takes a thread's niceness for its own. One that is nicer already stays so: to be less nice is not for all.
    """
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < THREAD_NICENESS:
        os.setpriority(os.PRIO_PROCESS, thread, THREAD_NICENESS)
    take_short_slices()


def take_short_slices() -> None:
    """From now on this thread, and those it starts, give way at once to who wakes up on the same core.

    Else a thread keeps its core for a slice, some ms: of two threads of a step one would wait for it, and the other for
    that one. Before Linux 6.12, and elsewhere, slices are what they are.
    """
    libc: Any = ctypes.CDLL(None)
    number = SCHED_SETATTR.get(platform.machine())
    if hasattr(libc, "syscall") and platform.system() == "Linux" and number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        attributes = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SHORT_SLICE_NS, 0, 0)
        libc.syscall(number, 0, attributes, 0)
