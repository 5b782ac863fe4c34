"""tier.disk: rows of 256 bytes on disk: random reads of 1 k, writes of 10 k, and both during a training loop.

The page cache is warm. Our rows pass through another process; the peers run in this one and hold its GIL. rocksdict and
LMDB: `pip install springtide[bench]`.
"""

# N rows
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.bench.harness.machine_limits import HAS_BFLOAT16, ThreadSlices, copy_rate
from tests.bench.harness.report import Case, against_each, alternate, arguments, fail, report, timed
from tests.bench.tier.disk_stores import PEERS, WIDTH, Float32Array, SpringtideSpill
from tests.bench.workloads.clicks import CATEGORICAL
from tests.bench.workloads.small_dlrm import DenseOnly

READ_KEYS, WRITE_KEYS, BATCH = 1000, 10_000, 4096
MISSES = len(CATEGORICAL) * BATCH // 10  # with 90 % of the keys in memory
NEEDED = {"rocksdb-py as it comes": 2.0, "rocksdict tuned": 1.2, "LMDB": 1.2}
STALL = 0.95  # of the speed without a store


class Loop:
    """Steps of DLRM-small on one thread, while a store reads the next batch's misses and writes as many rows."""

    def __init__(self, ids_N: Any, rows_NW: Float32Array) -> None:
        torch.set_num_threads(1)
        self.ids_N, self.rows_NW, self.random = ids_N, rows_NW, np.random.default_rng(3)
        self.net = DenseOnly(BATCH, bfloat16=HAS_BFLOAT16)
        self.ahead = ThreadPoolExecutor(1)

    def run(self, num_steps: int, store: Any) -> None:
        for _ in range(num_steps):
            fetch = self.ahead.submit(self.swap, store) if store is not None else None
            self.net.step()
            if fetch is not None:
                fetch.result()

    def swap(self, store: Any) -> None:
        start = int(self.random.integers(0, len(self.ids_N) - 2 * MISSES))
        store.read_columns(self.ids_N[start : start + MISSES])
        leaving = slice(start + MISSES, start + 2 * MISSES)
        store.write(self.ids_N[leaving], self.rows_NW[leaving])


def open_stores(folder: Path) -> dict[str, Any]:
    """Return the installed stores, ours first."""
    stores: dict[str, Any] = {"ours": SpringtideSpill(folder / "ours")}
    for name, make in PEERS.items():
        try:
            stores[name] = make(folder / name.split()[0].lower())
        except ImportError:
            print(f"not installed: {name}")
    return stores


def check(stores: dict[str, Any], ids_N: Any, rows_NW: Float32Array) -> None:
    """Check that every store returns every row bitwise."""
    at = np.random.default_rng(1).permutation(len(ids_N))[:20_000]
    for name, store in stores.items():
        store.settle()
        if not np.array_equal(store.read(ids_N[at]).view(np.uint32), rows_NW[at].view(np.uint32)):
            fail(f"the rows of {name}")


def read_some(store: Any, ids_N: Any, num_calls: int) -> None:
    for call in range(num_calls):
        store.read_columns(ids_N[call * READ_KEYS : (call + 1) * READ_KEYS])


def write_some(store: Any, ids_N: Any, rows_NW: Float32Array, num_calls: int) -> None:
    for call in range(num_calls):
        part = slice(call * WRITE_KEYS, (call + 1) * WRITE_KEYS)
        store.write(ids_N[part], rows_NW[part])
    store.settle()


def measure(
    stores: dict[str, Any], ids_N: Any, rows_NW: Float32Array, sizes: dict[str, int], limit: float
) -> list[Case]:
    shuffled = np.random.default_rng(2).permutation(len(ids_N))
    ids_N, rows_NW = ids_N[shuffled], rows_NW[shuffled]
    reads: dict[str, Callable[[], float]] = {}
    writes: dict[str, Callable[[], float]] = {}
    for name, store in stores.items():
        num_reads, num_writes = sizes["reads"], sizes["writes"]
        reads[name] = partial(timed, partial(read_some, store, ids_N, num_reads), num_reads * READ_KEYS)
        writes[name] = partial(timed, partial(write_some, store, ids_N, rows_NW, num_writes), num_writes * WRITE_KEYS)
    cases = []
    for what, runs in {"random reads of 1 k": reads, "writes of 10 k": writes}.items():
        cases += against_each(what, "rows/s", alternate(runs, repeats=sizes["repeats"]), NEEDED, limit)
    loop, num_samples = Loop(ids_N, rows_NW), sizes["steps"] * BATCH
    alone = partial(timed, partial(loop.run, sizes["steps"], None), num_samples)
    beside = {
        f"beside {name}": partial(timed, partial(loop.run, sizes["steps"], store), num_samples)
        for name, store in stores.items()
    }
    rates = alternate({"alone": alone} | beside, repeats=sizes["repeats"])
    cases.append(Case("training at 90 % hits", "samples/s", rates.pop("beside ours"), rates, needed=STALL))
    return cases


def main() -> None:
    options = arguments(__doc__)
    sizes = {"rows": 1_000_000, "reads": 200, "writes": 20, "steps": 8, "repeats": 5}
    if options.quick:
        sizes |= {"rows": 200_000, "reads": 20, "writes": 4, "steps": 2, "repeats": 2}
    random = np.random.default_rng(0)
    ids_N = random.permutation(sizes["rows"]).astype(np.int64) * 1_000_003
    rows_NW = random.standard_normal((sizes["rows"], WIDTH), np.float32)
    limit = copy_rate(ThreadSlices(1)) / (2 * 4 * WIDTH)  # one row read, one written
    with tempfile.TemporaryDirectory() as folder:
        stores = open_stores(Path(folder))
        try:
            for store in stores.values():
                write_some(store, ids_N, rows_NW, sizes["rows"] // WRITE_KEYS)
            check(stores, ids_N, rows_NW)
            cases = measure(stores, ids_N, rows_NW, sizes, limit)
            check(stores, ids_N, rows_NW)
        finally:
            for store in stores.values():
                store.close()
    report("tier.disk", cases, options, packages=("numpy", "numba", "torch", "rocksdb-py", "rocksdict", "lmdb"))
