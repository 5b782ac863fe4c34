"""What an embedding table consists of, how it is connected, and the threads that share one of its operations."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

from springtide.embeddings.config import Admission, TableConfig
from springtide.embeddings.counters import TableCounters
from springtide.embeddings.eviction_policy import Priorities, ScoreFunction
from springtide.embeddings.lookup.materialize import Materializer
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.memory.dirty_rows import DirtyRows
from springtide.embeddings.memory.eviction import EvictedDirtyRows, EvictionSink
from springtide.embeddings.memory.resident import ExpirySweep, ResidentRows
from springtide.embeddings.optimizer import RowOptimizer
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.policy.quotas import Quotas
from springtide.embeddings.policy.removals import Removals
from springtide.embeddings.policy.ttl import ExpiryCutoffs, LastSeenFloor, TimeToLive
from springtide.embeddings.tiers.disk_space import DiskCap
from springtide.embeddings.tiers.interface import RowSource, Spill
from springtide.embeddings.tiers.lower_tiers import LowerTiers
from springtide.embeddings.tiers.no_spill import NoSpill
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.kernels.row_optimizers import check_device

R = TypeVar("R")

MIN_SPLIT_KEYS = 4096  # fewer do not repay waking a second thread


class IntraOpPool:
    """`num_threads` threads, including the calling one, which takes the first part of the work."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def map(self, work: Callable[[int, int], R], num: int) -> list[R]:
        """The results of work(start, stop) for consecutive parts of 0..num, in their order."""
        if self._pool is None or num < MIN_SPLIT_KEYS:
            return [work(0, num)]
        (_, end), *others = pairwise(num * part // self._num_threads for part in range(self._num_threads + 1))
        futures = [self._pool.submit(work, start, stop) for start, stop in others]
        try:
            first = work(0, end)
        finally:
            wait(futures)  # also after an exception: no thread works on when this returns
        return [first, *(future.result() for future in futures)]

    def parallel_for(self, work: Callable[[int, int], None], num: int) -> None:
        """Call work(start, stop) for consecutive parts of 0..num."""
        for _ in self.map(work, num):
            pass

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


class TableComponents:
    """Creates every component of one table."""

    def __init__(
        self,
        config: TableConfig,
        *,
        seed: int,
        spill: Spill | None = None,
        base: RowSource | None = None,
        capacity: Capacity | None = None,
        tracked: bool = True,
        device: str | Ops = "cpu",
        other_disk_bytes: Callable[[], int] = lambda: 0,
        score: ScoreFunction | None = None,
        admission: AdmissionControl | None = None,
    ) -> None:
        """Without a spill evicted rows are lost.

        `tracked`: every changed row is part of the next delta, so `take_delta` must be called; without it, never.
        `device`: "cpu", "cuda" (the GPU that torch has selected), or the ops of one.
        `other_disk_bytes`: the bytes that the log takes of `disk_bytes`; the spill may take half of it in any case.
        `admission`: of another table, to share its sketch.
        `score`: with custom eviction, what gives rows their priorities, whenever they change, instead of the callers.
        """
        if base is not None and spill is None:
            raise ValueError("a table over a base needs a spill: evicted rows would be read from the base again")
        if tracked and spill is not None and spill.is_exclusive:
            raise ValueError("a host tier needs a spill below it: set disk_path, or host_bytes = 0")
        self.config, self.seed, self.dim, self.tracked = config, seed, config.dim, tracked
        self.ops = ops = backend(device)
        self.optimizer = RowOptimizer.of(config.optimizer)
        check_device(self.optimizer.name, ops.device)
        self.lr, self.lr_factor = self.optimizer.lr, 1.0
        self.layout = config.layout
        state_width = self.layout.state_width
        capacity = (capacity or Capacity.of_bytes(config, ops, tracked=tracked)).in_buckets_of(ops.width)
        self.counts = TableCounters()
        self.spill: Spill = spill or NoSpill(config.dim, state_width)
        self.host_tier = self.spill.host_tier
        self.disk = self.spill if self.host_tier is None else self.host_tier.spill  # the lowest spill
        self.priorities = Priorities(ops, config.eviction_policy.by(score), seed)
        self.cutoffs = ExpiryCutoffs()
        self.quotas = Quotas(config.features, ops.slot_bytes(self.layout))
        self.removals = Removals()
        if self.host_tier is not None:
            self.host_tier.removals = self.removals
        self.evicted_dirty = EvictedDirtyRows(capacity.num_evicted_dirty, config.dim, state_width)
        self.eviction_sink = EvictionSink(
            ops,
            self.spill,
            self.evicted_dirty,
            self.cutoffs,
            self.counts,
            capacity.num_slots,
            self.removals,
            tracked=tracked,
        )
        self.memory = ResidentRows(ops, capacity, self.layout, self.eviction_sink, self.quotas)
        self.lower_tiers = LowerTiers(ops, self.spill, base, self.eviction_sink.retry_spill)
        if admission is None:
            admission = AdmissionControl(ops, Admission.of(config.admission), config.features, tracked=tracked)
        self.admission = admission
        self.ttl = TimeToLive(self.cutoffs, config.features)
        self.last_seen_floor = LastSeenFloor(config.disk_bytes, 4 * (config.dim + state_width) + 24)
        self.expiry_sweep = ExpirySweep(self.memory, self.cutoffs)
        self.disk_cap = DiskCap(self.spill, self.cutoffs, config.disk_bytes, other_bytes=other_disk_bytes)
        self.dirty_rows = DirtyRows(self.memory, self.evicted_dirty, self.cutoffs)
        self.materializer = Materializer(
            ops=ops,
            memory=self.memory,
            lower_tiers=self.lower_tiers,
            eviction_sink=self.eviction_sink,
            removals=self.removals,
            admission=self.admission,
            cutoffs=self.cutoffs,
            counters=self.counts,
            config=config,
            priorities=self.priorities,
            seed=seed,
        )
        self.output_buffers = ops.new_output_buffers()
        self.pool = IntraOpPool(min(config.num_threads, ops.max_threads))

    def close(self) -> None:
        self.pool.close()
        self.lower_tiers.close()
