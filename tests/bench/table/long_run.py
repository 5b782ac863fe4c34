"""table.long_run: training on 200 million ids in a full table, a fifth of them new; dim 16.

Memory must not grow after the first tenth, and the last tenth must be as fast as the first.
"""

# K keys of a batch, D dimension
import sys
import time
from pathlib import Path

import numpy as np

from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from tests.bench.harness.machine_limits import ThreadSlices, copy_rate
from tests.bench.harness.report import Case, arguments, fail, report
from tests.bench.workloads.keys import churn_stream

DIM, BATCH, NEW_SHARE, TENTHS = 16, 65_536, 0.2, 10
MAX_GROWTH, MAX_SLOWER = 1.02, 0.9
ROWS_MOVED = 5  # forward 2, gradient 1, row 2


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    sys.exit("this needs /proc/self/status")


class Run:
    """The table, and its position in the stream."""

    def __init__(self, num_rows: int) -> None:
        config = TableConfig(dim=DIM)
        rows = Capacity.of_rows(num_rows, num_evicted_dirty=1)
        self.table = EmbeddingTable(config, seed=0, capacity=rows, tracked=False)
        self.population, self.num_new, self.num_keys = 4 * num_rows, 0, 0
        self.features_K, self.times_K = np.zeros(BATCH, np.uint16), np.zeros(BATCH, np.int64)
        self.grads_KD = np.random.default_rng(0).standard_normal((BATCH, DIM), np.float32)

    def learn(self, num_keys: int) -> float:
        """Learn a part of the stream; return the keys per second of the table's calls alone."""
        seconds = 0.0
        for start in range(0, num_keys, BATCH):
            num = min(BATCH, num_keys - start)
            ids_K = churn_stream(
                num,
                population=self.population,
                new_share=NEW_SHARE,
                seed=self.num_keys,
                first_new=self.num_new,
            )
            self.num_keys, self.num_new = self.num_keys + num, self.num_new + num  # every new id is used once
            began = time.perf_counter()
            lookup = self.table.lookup(self.features_K[:num], ids_K, self.times_K[:num])
            rows_KD = self.table.gather(lookup)
            self.table.update(lookup, self.grads_KD[:num])
            seconds += time.perf_counter() - began
            if np.isnan(rows_KD).any():
                fail("a key without a row")
        return num_keys / seconds


def main() -> None:
    options = arguments(__doc__)
    num_keys, num_rows = (2_000_000, 65_536) if options.quick else (200_000_000, 1_048_576)
    run = Run(num_rows)
    rates: list[float] = []
    resident: list[int] = []
    run.learn(BATCH)  # compile, and allocate every buffer
    for tenth in range(1, TENTHS + 1):
        rates.append(run.learn(num_keys // TENTHS))
        resident.append(resident_bytes())
        print(f"tenth {tenth}: {rates[-1]:,.0f} keys/s, {resident[-1] / 2**20:,.1f} MiB", flush=True)
    run.table.check_integrity()
    counters = run.table.counters()
    print(", ".join(f"{name} {number:,}" for name, number in counters.items() if number))
    limit = copy_rate(ThreadSlices(1)) / (ROWS_MOVED * 4 * DIM)
    first, later = {"first tenth": rates[:1]}, {"later": [float(max(resident))]}
    memory = "memory after the first tenth, beside the most of all later ones"
    cases = [
        Case("speed of the last tenth", "keys/s", rates[-1:], first, needed=MAX_SLOWER, limit=limit),
        Case(memory, "bytes", [float(resident[0])], later, needed=1 / MAX_GROWTH),
    ]
    report("table.long_run", cases, options, packages=("numpy", "numba", "torch"))
