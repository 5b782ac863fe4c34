"""Threads that yield to the learning thread, and processes that yield to all others."""

import os
import subprocess
import sys
import threading

from springtide.app.processes.priority import LOWEST_NICENESS, SHORT_SLICE_NS, THREAD_NICENESS, yield_to_learning
from tests.support.processes import our_environment


def slice_of(native_id: int) -> int:
    """Return a thread's slice in ns; Linux reports it since 6.12, otherwise return the default."""
    with open(f"/proc/{native_id}/sched") as file:
        lines = [line for line in file if line.startswith("se.slice")]
    return int(lines[0].split(":")[1]) if lines else SHORT_SLICE_NS


def test_yielding_changes_niceness_and_slice_of_one_thread_only() -> None:
    mine, found = threading.get_native_id(), []
    before = os.getpriority(os.PRIO_PROCESS, mine), slice_of(mine)

    def work() -> None:
        yield_to_learning()
        me = threading.get_native_id()
        found.append((os.getpriority(os.PRIO_PROCESS, me), slice_of(me)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(max(THREAD_NICENESS, before[0]), SHORT_SLICE_NS)]
    assert (os.getpriority(os.PRIO_PROCESS, mine), slice_of(mine)) == before


def test_a_background_process_and_its_threads_have_the_lowest_niceness() -> None:
    work = (
        "import os, threading; from springtide.app.processes.priority import yield_to_others; yield_to_others();"
        "show = lambda: print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()));"
        "show(); thread = threading.Thread(target=show); thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, env=our_environment())
    assert done.stdout.splitlines() == [f"{os.SCHED_OTHER} {LOWEST_NICENESS}"] * 2, done.stderr
