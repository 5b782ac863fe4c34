"""What a table is made of, and what versions, orders and limits do to its rows, wherever they are."""

# N rows, B blocks of the admission sketch
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from embeddings.bulk import Contents
from embeddings.config import Admission, TableConfig, TableLimits
from embeddings.counters import COUNTERS, Counts
from embeddings.current_stream import on_current_stream
from embeddings.intra_op_pool import Workers
from embeddings.lookup.materialize import Residence
from embeddings.lookup.output_buffers import Buffers
from embeddings.lookup.read_only import UInt8Array
from embeddings.memory.capacity import Capacity
from embeddings.memory.dirty_rows import Changes
from embeddings.memory.evicted_dirty_rows import SideBuffer
from embeddings.memory.eviction import Departures
from embeddings.memory.expiry_sweep import Expiry
from embeddings.memory.integrity import check
from embeddings.memory.resident import Memory
from embeddings.optimizer import RowOptimizer
from embeddings.policy.admission import AdmissionControl, SketchFacts
from embeddings.policy.quotas import Quotas
from embeddings.policy.ttl import Horizons
from embeddings.rows import Int64Array, Rows, Touched, UInt16Array, as_keys
from embeddings.tiers.base import RowSource
from embeddings.tiers.disk_cap import DiskCap
from embeddings.tiers.host_tier import HostTier
from embeddings.tiers.interface import Spill
from embeddings.tiers.lower_tiers import Below
from embeddings.tiers.no_spill import NoSpill
from kernels.backend import backend
from kernels.spec import DIRTY, NEEDS_SPILL, Ops, RowLayout


class Tiers:
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
        disk_beside: Callable[[], int] = lambda: 0,
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
        self._counters = Counts()
        if base is not None and spill is None:
            raise ValueError("a table over a base needs a spill: evicted rows would be read from the base again")
        self.spill: Spill = spill or NoSpill(config.dim, self.layout.state_width)
        self.rules = Horizons()
        self.side = SideBuffer(capacity.num_side, config.dim, self.layout.state_width)
        self.quotas = Quotas(config.features, self.ops.slot_bytes(self.layout))
        self.departures = Departures(
            self.ops, self.spill, self.side, self.rules, self._counters, capacity.num_slots, tracked=tracked
        )
        self.memory = Memory(self.ops, capacity, self.layout, self.departures, self.quotas)
        self.below = Below(self.spill, base, self.departures)
        self.admission = AdmissionControl(self.ops, Admission.of(config.admission), config.features, tracked=tracked)
        self.expiry = Expiry(self.memory, self.rules, config.features)
        self.disk_cap = DiskCap(self.spill, self.rules, config.disk_bytes, beside=disk_beside)
        self.buffers = Buffers()
        self.changes = Changes(self.memory, self.side, self.rules)
        self.residence = Residence(
            ops=self.ops,
            memory=self.memory,
            below=self.below,
            departures=self.departures,
            admission=self.admission,
            horizons=self.rules,
            counters=self._counters,
            config=config,
            seed=seed,
        )
        self.contents = Contents(self.memory, self.below, self.changes, self.rules, by_count=config.eviction == "lfu")
        self.workers = Workers(config.num_threads if self.ops.on_host else 1)

    # versions

    def needs_cut(self, num_keys: int) -> bool:
        """Whether a batch of so many keys may have to wait for a cut: a batch begins only when this is false."""
        self.departures.land()
        num_leaving = num_keys + self.quotas.most_leaving(self.memory.store.num_slots)
        return self.tracked and not self.side.can_take(num_leaving)

    @on_current_stream
    def cut(self) -> Touched:
        """All rows touched, all keys forgotten since the last cut; the resident copy goes before the buffered one."""
        self._counters["cuts"] += 1
        return self.changes.cut(self.workers.spread)

    @on_current_stream
    def cut_sketch(self) -> tuple[Int64Array, UInt8Array]:
        """Blocks of the admission sketch that changed since the last one, and their bytes, (B, 64)."""
        return self.admission.cut()

    def sketch(self) -> SketchFacts:
        """Whether ids are counted before they are admitted, in how many blocks, and the age of the counts."""
        return self.admission.facts()

    @on_current_stream
    def restore(self, touched: Touched) -> None:
        """Takes rows and forgettings of a version as this table's own: changed, but not to be told again."""
        self.contents.forget(touched.forgotten_features, touched.forgotten_ids)
        self.contents.write(touched, NEEDS_SPILL)

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
        return {"sketch_age": self.admission.age, "event_ms": self.expiry.event_ms, "sweep": self.expiry.cursor}

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `clock_state` gave; horizons have a call of their own."""
        self.admission.age = int(state.get("sketch_age", 0))
        self.expiry.event_ms, self.expiry.cursor = int(state.get("event_ms", 0)), int(state.get("sweep", 0))

    @property
    def horizons(self) -> dict[int, int]:
        """By feature: rows last seen before, in ms of event time, are forgotten."""
        return self.rules.document()

    def raise_horizons(self, horizons: Mapping[int, int]) -> None:
        """Forgets by rule, in every tier; a horizon never falls."""
        if self.rules.raise_to(horizons):
            self.spill.purge(self.rules.document())

    @on_current_stream
    def write(self, rows: Rows) -> None:
        """Rows from elsewhere replace what is here; the next cut tells them. ValueError where one is not finite."""
        if not (np.isfinite(rows.values).all() and np.isfinite(rows.states).all()):
            raise ValueError("rows to be written hold numbers that are not finite: leave those rows out")
        self.contents.write(Touched.of(rows), NEEDS_SPILL | DIRTY if self.tracked else NEEDS_SPILL)

    @on_current_stream
    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """These keys have no row any more, in any tier; the next cut tells it."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        self.contents.forget(features_N, ids_N)
        if self.tracked:
            self.side.add_marks(features_N, ids_N)
        self._counters["forgotten"] += len(ids_N)

    @on_current_stream
    def export(self) -> Rows:
        """Every row in memory and in the spill, each key once; not those of the base."""
        return self.contents.export()

    def open_generation(self) -> int:
        """Right after the cut that a base begins with: the number `map_base` wants once that base is there."""
        return self.spill.open_generation()

    def map_base(self, base: RowSource, generation: int) -> None:
        """Reads from this base from now on; the spill's generations up to this one are covered by it."""
        self.below.base = base
        self.memory.writes += 1  # a recall in flight may read the old base without the generation that lay over it
        self.spill.destroy_generations(generation)

    # limits

    def set_lr(self, lr: float) -> None:
        self.lr = self.optimizer.with_lr(lr).lr

    @on_current_stream
    def set_limits(self, limits: TableLimits) -> None:
        """Takes effect now; nothing may be held while device_bytes changes. ValueError changes nothing."""
        self.departures.land()
        # first what may be refused
        lr = self.lr if limits.lr is None else self.optimizer.with_lr(limits.lr).lr
        if limits.device_bytes is not None:
            config = replace(self.config, device_bytes=limits.device_bytes)
            capacity = Capacity.of_bytes(config, self.ops, tracked=self.tracked)
            self.contents.resize(capacity.num_slots, capacity.num_overflow)
            self.side.capacity, self.config = capacity.num_side, config
        self.lr = lr
        if limits.disk_bytes is not None:
            self.disk_cap.set_limit(limits.disk_bytes)
        if limits.quota_bytes:
            self.quotas.set_limits(limits.quota_bytes, self.memory.features())
            self.memory.trim()
        self.expiry.set_ttl(limits.ttl_seconds)
        self.admission.set_min_counts(limits.min_count)

    # what others want to know

    @on_current_stream
    def counters(self) -> dict[str, int]:
        """Since the table was made, by name: COUNTERS, and those of the spill."""
        self.departures.land()
        self._counters.arrive(self.ops)
        counters = dict.fromkeys(COUNTERS, 0) | dict(self._counters) | self.spill.counters()
        return counters | {"overflowed": self.memory.num_overflowed}

    def rows_by_tier(self) -> dict[str, int]:
        """`device`, `disk`, and `host` where there is such a tier."""
        self.departures.land()
        host, disk = self._tiers_below()
        return {"device": self.memory.num_rows, "disk": disk.num_rows()} | (
            {} if host is None else {"host": host.num_host_rows()}
        )

    def bytes_by_tier(self) -> dict[str, int]:
        """The same tiers; `spill_memory` is what they take of memory beside the rows."""
        host, disk = self._tiers_below()
        device = self.memory.num_bytes() + self.changes.num_bytes() + self.admission.num_bytes()
        return {"device": device, "disk": disk.num_bytes(), "spill_memory": disk.memory_bytes()} | (
            {} if host is None else {"host": host.host_bytes()}
        )

    def _tiers_below(self) -> tuple[HostTier | None, Spill]:
        host = self.spill if isinstance(self.spill, HostTier) else None
        return host, self.spill if host is None else host.spill

    @on_current_stream
    def check_integrity(self) -> None:
        """AssertionError where the parts contradict each other."""
        check(self.memory, self.changes.slots() if self.tracked else None)

    def close(self) -> None:
        self.workers.close()
        self.below.close()
