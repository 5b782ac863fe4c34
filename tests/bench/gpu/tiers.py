"""gpu.tiers: training of a table larger than the GPU's memory, its other rows in the host's RAM, with prefetch.

Two cases: half of each batch is missing on a full device (where HierarchicalKV's insert_and_evict throws), and a
training step over ten features whose cache holds 0.8 of the rows, compared with dynamicemb's published figure. The
limit of both is the link to the host. Needs an NVIDIA GPU, and exits with a message without one.
"""

# K keys of a call, D dimension
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from springtide.app.training.device import CudaTransferStream, TransferStream
from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.optimizer import RowOptimizer
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.kernels.types import RowLayout
from tests.bench.gpu.table import host
from tests.bench.harness.report import Case, arguments, fail, report, save_lines

HKV = "HierarchicalKV on an A100, find_or_insert over HBM and host, published, not scaled"
DYNAMICEMB = "dynamicemb on an H100, cache 0.8, Adam, published, not scaled"
PUBLISHED_KEYS, PUBLISHED_STEPS = 0.095e9, 1 / 0.02433
FEATURES, POWER = 10, 1.05
RECORD_BYTES = 24  # count, last-seen and flags that travel with a row
LR = 0.5


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes of a run."""

    churn_dim: int
    churn_rows: int  # on the device; as many again in the host tier
    step_dim: int
    feature_rows: int  # per feature of the training step, which has ten
    num_keys: int  # per call
    num_steps: int  # per repeat
    repeats: int
    link_bytes: int


FULL = Size(
    churn_dim=64,
    churn_rows=1 << 24,
    step_dim=128,
    feature_rows=6_000_000,
    num_keys=1 << 20,
    num_steps=8,
    repeats=5,
    link_bytes=1 << 31,
)
QUICK = Size(
    churn_dim=64,
    churn_rows=1 << 20,
    step_dim=128,
    feature_rows=100_000,
    num_keys=1 << 17,
    num_steps=4,
    repeats=2,
    link_bytes=1 << 27,
)
Keys = tuple[Any, Any, Any]


@dataclass
class Bench:
    """A device, its transfer stream, and the sizes of the run."""

    ops: Ops
    lane: TransferStream
    wait: Callable[[], None]  # waits for all work on the device
    size: Size
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @contextmanager
    def table(self, dim: int, optimizer: str, num_device: int, num_host: int) -> Iterator[EmbeddingTable]:
        """Make a table over a host tier for `num_rows` rows; rows beyond that go to the disk."""
        config = TableConfig(dim=dim, optimizer={"name": optimizer, "lr": LR}, init_scale=0.0)
        width, cpu = RowOptimizer.of(config.optimizer).state_width(dim), backend("cpu")
        with tempfile.TemporaryDirectory() as folder:
            disk = RocksSpill(Path(folder) / "spill", dim=dim, state_width=width)
            below = HostTier(disk, num_rows=max(num_host, cpu.width), layout=RowLayout(dim, width), ops=cpu)
            capacity = Capacity.of_rows(num_device, num_evicted_dirty=1)
            table = EmbeddingTable(config, seed=0, spill=below, capacity=capacity, tracked=False, device=self.ops)
            try:
                yield table
            finally:
                table.close()

    def learn(self, table: EmbeddingTable, batches: list[Keys], grads: Any) -> None:
        """Learn as a learner does: the next batch's rows are uploaded during this batch's step."""
        foreseen = None
        for keys, following in zip(batches, [*batches[1:], None], strict=True):
            lookup = table.lookup(*keys, prefetched=foreseen)
            placed, num_removals = self.lane.record_event(), table.num_removals
            table.gather(lookup)
            table.update(lookup, grads[: len(keys[1])])
            if table.num_removals != num_removals:
                placed = self.lane.record_event()
            foreseen = None
            if following is not None:
                with self.lane.side_stream(placed):
                    foreseen = table.prefetch(*following)

    def put(self, features: Any, ids: Any) -> Keys:
        features, ids, times = self.ops.put(features.astype(np.uint16), ids, np.zeros(len(ids), np.int64))
        return features, ids, times

    def seconds(self, table: EmbeddingTable, batches: Callable[[], list[Keys]], grads: Any) -> list[float]:
        """Return the seconds per batch of each repeat."""
        took = []
        for turn in range(self.size.repeats + 1):
            given = batches()
            self.wait()
            start = time.perf_counter()
            self.learn(table, given, grads)
            self.wait()
            if turn:
                took.append((time.perf_counter() - start) / len(given))
        return took

    def link_rate(self) -> float:
        """Return the bytes per second of the fastest copy from pinned memory to the device."""
        here, there = (
            self.lane.allocate_pinned(self.size.link_bytes),
            self.lane.allocate_on_device(self.size.link_bytes),
        )
        best = 0.0
        for _ in range(4):
            self.wait()
            start = time.perf_counter()
            self.lane.host_wait(self.lane.copy_async(here, there, self.lane.record_event()))
            best = max(best, len(here) / (time.perf_counter() - start))
        return best


def misses_of(table: EmbeddingTable, work: Callable[[], list[float]]) -> tuple[list[float], float]:
    """Return the result of `work`, and how many rows of a lookup were uploaded meanwhile."""
    before, ticks = table.counters(), table.memory.pins.clock
    result = work()
    after = table.counters()
    if after["host_spilled"] > before["host_spilled"]:
        print(f"  {after['host_spilled'] - before['host_spilled']:,} rows went to the disk: their buckets were full")
    num = after["recalled_from_spill"] - before["recalled_from_spill"]
    return result, max(1.0, num / max(1, table.memory.pins.clock - ticks))


def churn_case(bench: Bench, link: float) -> Case:
    """Measure batches of which half is missing on a full device: as many rows are uploaded as evicted."""
    size, dim = bench.size, bench.size.churn_dim
    num, universe = size.num_keys, 2 * size.churn_rows
    (grads,) = bench.ops.put(np.ones((num, dim), np.float32))
    learned = np.zeros(universe, np.int64)

    def batch(ids: Any) -> Keys:
        learned[ids] += 1
        return bench.put(np.zeros(len(ids)), ids)

    def batches() -> list[Keys]:
        return [batch(np.unique(bench.rng.integers(0, universe, num))) for _ in range(size.num_steps)]

    # rows on the device keep their slots in the host tier, so in the end nearly every row has one there
    with bench.table(dim, "sgd", size.churn_rows, universe * 4 // 3) as table:
        bench.learn(table, [batch(np.arange(at, min(at + num, universe))) for at in range(0, universe, num)], grads)
        took, misses = misses_of(table, lambda: bench.seconds(table, batches, grads))
        some = bench.rng.integers(0, universe, 10_000)
        rows, status = (host(array) for array in table.find(np.zeros(len(some), np.uint16), some))
        if status.any() or not np.array_equal(rows, np.repeat(-LR * learned[some, None], dim, axis=1)):
            fail("a row that was evicted and fetched differs from the learned one")
    rates = [num / seconds for seconds in took]
    limit = num * link / (misses * (4 * dim + RECORD_BYTES))
    title = (
        f"insert_and_evict over HBM and host, dim {dim}, {size.churn_rows:,} of {universe:,} rows on the device, "
        f"{misses:,.0f} misses a call"
    )
    return Case(title, "keys/s", rates, {HKV: [PUBLISHED_KEYS]}, limit=limit, contest=False)


def step_case(bench: Bench, link: float) -> Case:
    """Measure a step of Adam over ten features with Zipf ids; the device holds 0.8 of the rows."""
    size, dim, rows = bench.size, bench.size.step_dim, bench.size.feature_rows
    num = size.num_keys // FEATURES * FEATURES
    (grads,) = bench.ops.put(bench.rng.standard_normal((num, dim), np.float32))
    features = np.repeat(np.arange(FEATURES), num // FEATURES)

    def zipf() -> Keys:
        # inverse of the distribution function of a power law; frequent ids are anywhere
        u = bench.rng.random(num)
        ranks = (1 - u * (1 - rows ** (1 - POWER))) ** (1 / (1 - POWER))
        return bench.put(features, ranks.astype(np.int64) * 0x9E37_79B1 % rows)

    everything, total = num // FEATURES, FEATURES * rows
    with bench.table(dim, "adam", total * 4 // 5, total * 2 // 5) as table:
        for start in range(0, rows, everything):
            ids = np.arange(start, min(start + everything, rows))
            keys = bench.put(np.repeat(np.arange(FEATURES), len(ids)), np.tile(ids, FEATURES))
            bench.learn(table, [keys], grads)
        if sum(table.rows_by_tier()[tier] for tier in ("device", "host", "disk")) < total:
            fail("rows were lost at eviction")
        work = lambda: bench.seconds(table, lambda: [zipf() for _ in range(size.num_steps)], grads)  # noqa: E731
        took, misses = misses_of(table, work)
        row_bytes = 4 * (dim + table.layout.state_width) + RECORD_BYTES
    title = (
        f"training step, Adam, {num:,} look-ups, dim {dim}, ten features of {rows:,} rows "
        f"({total * row_bytes / 1e9:.1f} GB), cache 0.8, {misses:,.0f} misses a step"
    )
    rates = [1 / seconds for seconds in took]
    peers = {DYNAMICEMB: [PUBLISHED_STEPS]}
    return Case(title, "steps/s", rates, peers, needed=2.0, limit=link / (misses * row_bytes), contest=False)


def run(bench: Bench) -> list[Case]:
    """Run both cases, and measure the link."""
    link = bench.link_rate()
    return [churn_case(bench, link), step_case(bench, link), Case("host to device, pinned", "bytes/s", [link], {})]


def main() -> None:
    options = arguments(__doc__)
    import torch

    try:
        ops = backend("cuda")
    except ValueError as error:
        sys.exit(f"gpu.tiers: {error}")
    bench = Bench(ops, CudaTransferStream(), torch.cuda.synchronize, QUICK if options.quick else FULL)
    cases = run(bench)
    report("gpu.tiers", cases, options, packages=("torch", "cupy-cuda13x", "numpy", "numba", "rocksdb-py"))
    save_lines(options, cases)
