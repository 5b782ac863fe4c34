"""What a process of ours sets for all of itself before it imports torch, so that several get on with few cores."""

import ctypes
import os

# libgomp's threads look so often for more work before they sleep: some µs. Its default, some ms, is for machines on
# which nobody else wants the core: here decoding, the log, and a server do
GOMP_SPIN_COUNT = "1000"
MMAP_MAX, TRIM_THRESHOLD, ARENA_MAX = -4, -1, -8  # of glibc's mallopt
NEVER = 2**31 - 1


def tune_process() -> None:
    """1. OpenMP's idle threads sleep soon, unless the environment says otherwise. 2. Freed memory is used again."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = GOMP_SPIN_COUNT
    keep_freed_memory()


def keep_freed_memory() -> None:
    """What is freed stays with the process: arrays of many MB that come and go else cost fresh pages every time.

    Another C library than glibc has its own ways, and is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, NEVER)
        mallopt(ARENA_MAX, 1)
