"""The disk's own random-read rate, past the page cache: reads of a page with O_DIRECT, several at a time."""

import mmap
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

FILE_BYTES, PAGE = 512 << 20, 4096
DEPTHS = 1, 4, 16, 64
SECONDS = 1.0


def random_read_rates(folder: Path) -> dict[int, float]:
    """Reads of 4 KiB per second by how many are under way; {} where the file system has no O_DIRECT."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = np.random.default_rng(0).integers(0, 256, 16 << 20, np.uint8).tobytes()
        for _ in range(FILE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        try:
            descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return {}
        try:
            return {depth: _rate(descriptor, depth) for depth in DEPTHS}
        finally:
            os.close(descriptor)


def describe(rates: dict[int, float]) -> str:
    """One line for the report."""
    if not rates:
        return "the disk's own random reads: not measured, no O_DIRECT here"
    parts = ", ".join(f"{rate:,.0f} with {depth}" for depth, rate in rates.items())
    return f"the disk's own random reads of 4 KiB, a second: {parts} under way"


def _rate(descriptor: int, depth: int) -> float:
    """Read from as many threads: a read waits without the interpreter's lock."""
    counts = [0] * depth
    end = time.perf_counter() + SECONDS

    def read(thread: int) -> None:
        buffer = mmap.mmap(-1, PAGE)  # aligned, as O_DIRECT demands
        offsets = np.random.default_rng(thread).integers(0, FILE_BYTES // PAGE, 4096) * PAGE
        while time.perf_counter() < end:
            os.preadv(descriptor, [buffer], int(offsets[counts[thread] % len(offsets)]))
            counts[thread] += 1

    threads = [threading.Thread(target=read, args=(thread,)) for thread in range(depth)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)
