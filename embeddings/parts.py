"""What a table is made of, and what versions, orders and limits do to its rows, wherever they are."""

# N rows, B blocks of the admission sketch
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from embeddings.bulk import BulkOperations
from embeddings.config import Admission, TableConfig, TableLimits
from embeddings.counters import COUNTERS, TableCounters
from embeddings.current_stream import on_current_stream
from embeddings.intra_op_pool import IntraOpPool
from embeddings.lookup.materialize import Materializer
from embeddings.lookup.read_only import UInt8Array
from embeddings.memory.capacity import Capacity
from embeddings.memory.dirty_rows import DirtyRows
from embeddings.memory.evicted_dirty_rows import EvictedDirtyRows
from embeddings.memory.eviction import EvictionSink
from embeddings.memory.expiry_sweep import ExpirySweep
from embeddings.memory.integrity import check_integrity
from embeddings.memory.resident import ResidentRows
from embeddings.optimizer import RowOptimizer
from embeddings.policy.admission import AdmissionControl, SketchInfo
from embeddings.policy.quotas import Quotas
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import Int64Array, Rows, TableDelta, UInt16Array, as_keys
from embeddings.tiers.base import RowSource
from embeddings.tiers.disk_cap import DiskCap
from embeddings.tiers.host_tier import HostTier
from embeddings.tiers.interface import Spill
from embeddings.tiers.lower_tiers import LowerTiers
from embeddings.tiers.no_spill import NoSpill
from kernels.backend import backend
from kernels.ops import Ops
from kernels.types import DIRTY, NEEDS_SPILL, RowLayout


class TableParts:
    """Memory, the tiers below it, and every part that decides which row is where. Used by one thread.

    With `tracked` every row that moves is told at the next cut; without it nobody cuts. Without a spill an evicted row
    is forgotten. Whatever a tier below refuses is a SpillError, and may be asked for again.
    """

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
    ) -> None:
        """`device`: "cpu", "cuda" (the GPU that torch has chosen), or the ops of one.

        `disk_beside`: the bytes that others take of `disk_bytes`; the spill keeps half of it in any case.
        """
        self.config, self.seed, self.dim, self.tracked = config, seed, config.dim, tracked
        self.optimizer = RowOptimizer.of(config.optimizer)
        self.lr = self.optimizer.lr
        self.ops = backend(device)
        self.layout = RowLayout(config.dim, self.optimizer.state_width(config.dim), config.dtype)
        capacity = capacity or Capacity.of_bytes(config, self.ops, tracked=tracked)
        capacity = capacity.in_buckets_of(self.ops.width)
        self._counters = TableCounters()
        if base is not None and spill is None:
            raise ValueError("a table over a base needs a spill: evicted rows would be read from the base again")
        self.spill: Spill = spill or NoSpill(config.dim, self.layout.state_width)
        self.cutoffs = ExpiryCutoffs()
        self.evicted_dirty = EvictedDirtyRows(capacity.num_evicted_dirty, config.dim, self.layout.state_width)
        self.quotas = Quotas(config.features, self.ops.slot_bytes(self.layout))
        self.eviction_sink = EvictionSink(
            self.ops, self.spill, self.evicted_dirty, self.cutoffs, self._counters, capacity.num_slots, tracked=tracked
        )
        self.memory = ResidentRows(self.ops, capacity, self.layout, self.eviction_sink, self.quotas)
        self.lower_tiers = LowerTiers(self.spill, base, self.eviction_sink)
        self.admission = AdmissionControl(self.ops, Admission.of(config.admission), config.features, tracked=tracked)
        self.ttl = ExpirySweep(self.memory, self.cutoffs, config.features)
        self.disk_cap = DiskCap(self.spill, self.cutoffs, config.disk_bytes, beside=other_disk_bytes)
        self.output_buffers = self.ops.new_output_buffers()
        self.dirty_rows = DirtyRows(self.memory, self.evicted_dirty, self.cutoffs)
        self.materializer = Materializer(
            ops=self.ops,
            memory=self.memory,
            lower_tiers=self.lower_tiers,
            eviction_sink=self.eviction_sink,
            admission=self.admission,
            cutoffs=self.cutoffs,
            counters=self._counters,
            config=config,
            seed=seed,
        )
        self.bulk = BulkOperations(
            self.memory, self.lower_tiers, self.dirty_rows, self.cutoffs, by_count=config.eviction == "lfu"
        )
        self.pool = IntraOpPool(min(config.num_threads, self.ops.max_threads))

    # versions

    def needs_checkpoint(self, num_keys: int) -> bool:
        """Whether a batch of so many keys may have to wait for a cut: a batch begins only when this is false."""
        self.eviction_sink.drain_inflight()
        num_leaving = num_keys + self.quotas.max_evictions(self.memory.store.num_slots)
        return self.tracked and not self.evicted_dirty.has_room_for(num_leaving)

    @on_current_stream
    def take_delta(self) -> TableDelta:
        """All rows touched, all keys forgotten since the last cut; the resident copy goes before the buffered one."""
        self._counters["cuts"] += 1
        return self.dirty_rows.take_delta(self.pool.parallel_for)

    @on_current_stream
    def take_sketch_delta(self) -> tuple[Int64Array, UInt8Array]:
        """Blocks of the admission sketch that changed since the last one, and their bytes, (B, 64)."""
        return self.admission.take_delta()

    def sketch(self) -> SketchInfo:
        """Whether ids are counted before they are admitted, in how many blocks, and the age of the counts."""
        return self.admission.sketch_info()

    @on_current_stream
    def restore(self, touched: TableDelta) -> None:
        """Takes rows and forgettings of a version as this table's own: changed, but not to be told again."""
        self.bulk.forget(touched.forgotten_features, touched.forgotten_ids)
        self.bulk.write(touched, NEEDS_SPILL)

    @on_current_stream
    def restore_sketch(self, blocks_B: Int64Array, bytes_B64: UInt8Array) -> None:
        """Takes blocks of a version or a base as this table's own."""
        self.admission.restore(blocks_B, bytes_B64)

    @property
    def num_removals(self) -> int:
        """Moves whenever rows leave, or change places, other than for a look-up.

        Who prefetches beside the device's work comes after what did that.
        """
        return self.memory.removals

    def clock_state(self) -> dict[str, Any]:
        """What moves with the stream and is no row: for a version, as JSON."""
        return {"sketch_age": self.admission.age, "event_ms": self.ttl.event_ms, "sweep": self.ttl.cursor}

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `clock_state` gave; horizons have a call of their own."""
        self.admission.age = int(state.get("sketch_age", 0))
        self.ttl.event_ms, self.ttl.cursor = int(state.get("event_ms", 0)), int(state.get("sweep", 0))

    @property
    def expiry_cutoffs(self) -> dict[int, int]:
        """By feature: rows last seen before, in ms of event time, are forgotten."""
        return self.cutoffs.as_dict()

    def raise_expiry_cutoffs(self, horizons: Mapping[int, int]) -> None:
        """Forgets by rule, in every tier; a horizon never falls."""
        if self.cutoffs.raise_to(horizons):
            self.spill.purge(self.cutoffs.as_dict())

    @on_current_stream
    def write(self, rows: Rows) -> None:
        """Rows from elsewhere replace what is here; the next cut tells them. ValueError where one is not finite."""
        if not (np.isfinite(rows.values).all() and np.isfinite(rows.states).all()):
            raise ValueError("rows to be written hold numbers that are not finite: leave those rows out")
        self.bulk.write(TableDelta.of(rows), NEEDS_SPILL | DIRTY if self.tracked else NEEDS_SPILL)

    @on_current_stream
    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """These keys have no row any more, in any tier; the next cut tells it."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        self.bulk.forget(features_N, ids_N)
        if self.tracked:
            self.evicted_dirty.add_tombstones(features_N, ids_N)
        self._counters["forgotten"] += len(ids_N)

    @on_current_stream
    def export(self) -> Rows:
        """Every row in memory and in the spill, each key once; not those of the base."""
        return self.bulk.export()

    def open_generation(self) -> int:
        """Right after the cut that a base begins with: the number `map_base` wants once that base is there."""
        return self.spill.open_generation()

    def map_base(self, base: RowSource, generation: int) -> None:
        """Reads from this base from now on; the spill's generations up to this one are covered by it."""
        self.lower_tiers.base = base
        self.memory.writes += 1  # a recall in flight may read the old base without the generation that lay over it
        self.spill.destroy_generations(generation)

    # limits

    def set_lr(self, lr: float) -> None:
        self.lr = self.optimizer.with_lr(lr).lr

    @on_current_stream
    def set_limits(self, limits: TableLimits) -> None:
        """Takes effect now; nothing may be held while device_bytes changes. ValueError changes nothing."""
        self.eviction_sink.drain_inflight()
        # first what may be refused
        lr = self.lr if limits.lr is None else self.optimizer.with_lr(limits.lr).lr
        if limits.device_bytes is not None:
            config = replace(self.config, device_bytes=limits.device_bytes)
            capacity = Capacity.of_bytes(config, self.ops, tracked=self.tracked)
            self.bulk.resize(capacity.num_slots, capacity.num_overflow)
            self.evicted_dirty.capacity, self.config = capacity.num_evicted_dirty, config
        self.lr = lr
        if limits.disk_bytes is not None:
            self.disk_cap.set_limit(limits.disk_bytes)
        if limits.quota_bytes:
            self.quotas.set_limits(limits.quota_bytes, self.memory.features())
            self.memory.enforce_quotas()
        self.ttl.set_ttl(limits.ttl_seconds)
        self.admission.set_min_counts(limits.min_count)

    # what others want to know

    @on_current_stream
    def counters(self) -> dict[str, int]:
        """Since the table was made, by name: COUNTERS, and those of the spill."""
        self.eviction_sink.drain_inflight()
        self._counters.fetch_pending(self.ops)
        counters = dict.fromkeys(COUNTERS, 0) | dict(self._counters) | self.spill.counters()
        return counters | {"overflowed": self.memory.num_overflowed}

    def rows_by_tier(self) -> dict[str, int]:
        """`device`, `disk`, and `host` where there is such a tier."""
        self.eviction_sink.drain_inflight()
        host, disk = self._host_and_disk()
        return {"device": self.memory.num_rows, "disk": disk.num_rows()} | (
            {} if host is None else {"host": host.num_host_rows()}
        )

    def bytes_by_tier(self) -> dict[str, int]:
        """The same tiers; `spill_memory` is what they take of memory beside the rows."""
        host, disk = self._host_and_disk()
        device = self.memory.num_bytes() + self.dirty_rows.num_bytes() + self.admission.num_bytes()
        return {"device": device, "disk": disk.num_bytes(), "spill_memory": disk.memory_bytes()} | (
            {} if host is None else {"host": host.host_bytes()}
        )

    def _host_and_disk(self) -> tuple[HostTier | None, Spill]:
        host = self.spill if isinstance(self.spill, HostTier) else None
        return host, self.spill if host is None else host.spill

    @on_current_stream
    def check_integrity(self) -> None:
        """AssertionError where the parts contradict each other."""
        check_integrity(self.memory, self.dirty_rows.slots() if self.tracked else None)

    def close(self) -> None:
        self.pool.close()
        self.lower_tiers.close()
