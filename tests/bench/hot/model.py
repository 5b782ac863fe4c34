"""hot.model: lookups of 64 ids in a HotModel while versions of 2,000 rows replace each other."""

import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from springtide_client import HotModel
from tests.bench.freshness.freshness import percentile
from tests.bench.harness.report import Case, arguments, fail, report
from tests.bench.serve.growing_log import growing_log
from tests.bench.workloads.row_log import FEATURE, write_log

NUM_IDS, NUM_ROWS, BASE_ROWS, PUBLISH_SECONDS = 64, 2_000, 1_000_000, 0.1
NEEDED_MS = 5.0


def measure(model: HotModel, seconds: float) -> tuple[list[float], list[float]]:
    """Return the milliseconds of calls during which the version changed, and of all others."""
    random = np.random.default_rng(1)
    swapping, others = [], []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ids_K, before = random.integers(0, BASE_ROWS, NUM_IDS), model.version
        begun = time.perf_counter()
        _, status_K = model.lookup(FEATURE, ids_K)
        took = 1e3 * (time.perf_counter() - begun)
        (others if model.version == before else swapping).append(took)
        if status_K.any():
            fail("a row of the base was not found")
    return swapping, others


def main() -> None:
    options = arguments(__doc__)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = write_log(folder, BASE_ROWS)
        stack.enter_context(growing_log(folder, PUBLISH_SECONDS, NUM_ROWS, stdout=subprocess.DEVNULL))
        model = stack.enter_context(HotModel(path))
        first = model.version
        while model.version < first + 10:
            time.sleep(0.05)
        swapping, others = measure(model, 5.0 if options.quick else 30.0)
    if not swapping:
        fail("no version changed during a call")
    worst = percentile(swapping, 0.99)
    bound = {"5 ms": [1 / NEEDED_MS]}
    case = Case("a call during a swap, p99", "1/ms", [1 / worst], bound, needed=1.0, contest=False)
    report("hot.model", [case], options, packages=("torch", "numpy"))
    for name, found in (("during a swap", swapping), ("others", others)):
        p50, p99 = statistics.median(found), percentile(found, 0.99)
        print(f"{len(found):7} calls {name}: p50 {p50:.3f}, p99 {p99:.3f}, worst {max(found):.2f} ms")
