"""Settings of a process as a whole, made before torch is imported, so that several processes share few cores."""

import ctypes
import os

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
