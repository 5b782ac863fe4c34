"""Freed memory is reused, idle threads do not spin; threads yield to the learning thread, processes to all others."""

import os
import subprocess
import sys
import threading

from springtide.app.processes.tuning import LOWEST_NICENESS, SHORT_SLICE_NS, THREAD_NICENESS, yield_to_learning
from tests.support.processes import our_environment

FAULTS = """
import resource, sys
import numpy as np
from springtide.app.processes.tuning import tune_process

def faults_of_a_round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for megabytes in (70, 3, 40):
        np.empty(megabytes << 20, np.uint8)[:: 4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1:]:
    tune_process()
rounds = [faults_of_a_round() for _ in range(4)]
print(rounds[-1])
"""


def last_round(*arguments: str) -> int:
    # without huge pages, so that each page that is touched for the first time is a fault
    environment = dict(os.environ) | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)


def test_freed_arrays_leave_their_pages_to_the_next_ones() -> None:
    assert last_round() > 1_000
    assert last_round("tuned") < 100


def test_idle_threads_sleep_soon_unless_the_environment_says_otherwise() -> None:
    code = "import os; from springtide.app.processes.tuning import tune_process; tune_process();"
    code += "print(os.getenv('GOMP_SPINCOUNT'))"
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    for said, spins in (({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, "None"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment | said
        )
        assert done.stdout.strip() == spins


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
        "import os, threading; from springtide.app.processes.tuning import yield_to_others; yield_to_others();"
        "show = lambda: print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()));"
        "show(); thread = threading.Thread(target=show); thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, env=our_environment())
    assert done.stdout.splitlines() == [f"{os.SCHED_OTHER} {LOWEST_NICENESS}"] * 2, done.stderr
