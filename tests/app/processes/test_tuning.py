"""The tuning of a process: freed memory is reused, idle threads do not spin."""

import os
import subprocess
import sys

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
