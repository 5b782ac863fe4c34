"""Processor time of threads, and how long each waited for a processor: from Linux's /proc, without a profiler."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class ThreadTime(NamedTuple):
    """Seconds since a thread began."""

    running: float
    waiting: float  # ready to run, while other threads had the processors

    def since(self, earlier: "ThreadTime") -> "ThreadTime":
        return ThreadTime(self.running - earlier.running, self.waiting - earlier.waiting)


def thread_times(pid: int) -> dict[int, ThreadTime]:
    """Return the times of each living thread of a process, by its native id; empty where there is no /proc."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        try:
            running, waiting, _ = (task / "schedstat").read_text().split()
        except OSError:
            continue  # it has ended since
        found[int(task.name)] = ThreadTime(int(running) / 1e9, int(waiting) / 1e9)
    return found


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ProcessorWait:
    """How long one thread has waited for a processor; cheap enough to be asked around each call."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid`: of a process whose main thread is meant; None: the calling thread."""
        pid, thread = (os.getpid(), threading.get_native_id()) if pid is None else (pid, pid)
        path = f"/proc/{pid}/task/{thread}/schedstat"
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(path) else None

    @property
    def seconds(self) -> float:
        """Seconds since the thread began; 0 where there is no /proc."""
        return 0.0 if self._descriptor is None else int(os.pread(self._descriptor, 100, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class ProcessTimes:
    """Adds up the times of threads while `measure` runs, by process and by thread name."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        """`processes`: pids by name. Python's threads are named in this process only; of others, the main thread is."""
        self._processes = dict(processes)
        self.totals: dict[str, ThreadTime] = {}
        self.amount = 0.0

    def measure(self, work: Callable[[], float], amount: float) -> float:
        """Run `work`, which does `amount` of something; return its result."""
        before = self._read()
        try:
            return work()
        finally:
            self._add(before)
            self.amount += amount

    def lines(self, per: float) -> list[str]:
        """Return a line for each thread: seconds on a processor, and waiting for one, for `per` of the work."""
        times = sorted(self.totals.items(), key=lambda item: -item[1].running)
        share = per / max(self.amount, 1e-9)
        return [
            f"{name}: {share * time.running:.2f} s, waited {share * time.waiting:.2f} s"
            for name, time in times
            if share * time.running >= 0.01
        ]

    def _read(self) -> dict[tuple[str, int], ThreadTime]:
        return {
            (name, thread): time for name, pid in self._processes.items() for thread, time in thread_times(pid).items()
        }

    def _add(self, before: Mapping[tuple[str, int], ThreadTime]) -> None:
        own = {thread.native_id: thread.name for thread in threading.enumerate()}
        for (process, thread), now in self._read().items():
            spent = now.since(before.get((process, thread), ThreadTime(0.0, 0.0)))
            is_main = thread == self._processes[process]
            if self._processes[process] == os.getpid():
                label = "main" if is_main else own.get(thread, "other threads")
            else:
                label = "main" if is_main else "other threads"
            known = self.totals.get(f"{process}, {label}", ThreadTime(0.0, 0.0))
            total = ThreadTime(known.running + spent.running, known.waiting + spent.waiting)
            self.totals[f"{process}, {label}"] = total
