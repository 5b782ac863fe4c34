"""How a process uses the machine: settings made before torch is imported, and when it yields to others."""

import ctypes
import os
import platform
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

# libgomp's idle threads check this often for more work before they sleep: some µs. The default, some ms, suits machines
# on which nothing else wants the core; here decoding, the log and a server do
GOMP_SPIN_COUNT = "1000"
MMAP_MAX, TRIM_THRESHOLD, ARENA_MAX = -4, -1, -8  # parameters of glibc's mallopt
NEVER = 2**31 - 1


def tune_process() -> None:
    """1. Let OpenMP's idle threads sleep soon, unless the environment says otherwise. 2. Reuse freed memory."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = GOMP_SPIN_COUNT
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Keep freed memory in the process: arrays of many MB that come and go would otherwise cost fresh pages each time.

    Does nothing with a C library other than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, NEVER)
        mallopt(ARENA_MAX, 1)


LOWEST_NICENESS = 19  # the lowest priority there is
THREAD_NICENESS = 10  # of threads beside the learning thread, which goes first where cores are few
AUTOGROUP = Path("/proc/self/autogroup")
SHORT_SLICE_NS = 100_000  # the shortest that Linux accepts
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # number of the system call, for which libc may have no function
ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority; runtime (the slice), deadline, period


def yield_to_others() -> None:
    """Let this process run only when no other process wants the processor. Cannot be undone; call before any thread.

    It still gets about a hundredth of a processor that others keep busy; under SCHED_IDLE it would get next to nothing,
    and a log that is full would wait for its base. Where Linux schedules sessions instead of processes (autogroup),
    niceness counts only within a session: a process that leads a session lowers the session's priority too.
    """
    os.nice(LOWEST_NICENESS)
    take_short_slices()
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(LOWEST_NICENESS))


def yield_to_learning() -> None:
    """Let this thread work in the gaps that the learning threads leave.

    Only Linux keeps niceness per thread: elsewhere this does nothing. A thread of even lower priority keeps it: raising
    it needs a privilege.
    """
    if platform.system() != "Linux":
        return
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < THREAD_NICENESS:
        os.setpriority(os.PRIO_PROCESS, thread, THREAD_NICENESS)
    take_short_slices()


def take_short_slices() -> None:
    """Let this thread, and those it starts, give way at once to a thread that wakes up on the same core.

    Otherwise a thread keeps its core for a slice of some ms: of two threads of a step, one would wait for the slice and
    the other for that one. Without effect before Linux 6.12 and on other systems.
    """
    libc: Any = ctypes.CDLL(None)
    number = SCHED_SETATTR.get(platform.machine())
    if hasattr(libc, "syscall") and platform.system() == "Linux" and number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        attributes = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SHORT_SLICE_NS, 0, 0)
        libc.syscall(number, 0, attributes, 0)
