"""The embedding table: rows for any id, made when first asked for, moved to lower tiers when not asked for long.

Knows no device and no file: devices are verbs (kernels/spec.py), files are a Spill and a RowSource.
"""

# K keys of a batch, U unique keys, N some of them, B rows of gradients, D dimension
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embeddings import autograd
from embeddings.admission import AdmissionControl
from embeddings.autograd import Part
from embeddings.below import Below
from embeddings.buffers import Buffers
from embeddings.capacity import Capacity
from embeddings.changes import Changes
from embeddings.config import Admission, TableConfig, TableLimits
from embeddings.contents import Contents
from embeddings.counters import COUNTERS
from embeddings.departures import Departures
from embeddings.disk_cap import DiskCap
from embeddings.expiry import Expiry
from embeddings.horizons import Horizons
from embeddings.lookup import Lookup
from embeddings.memory import Memory
from embeddings.optimizer import RowOptimizer
from embeddings.prefetch import Prefetch
from embeddings.quotas import Quotas
from embeddings.reading import UInt8Array, read_rows
from embeddings.residence import Residence
from embeddings.rows import Float32Array, Int64Array, Rows, Touched, UInt16Array, as_keys
from embeddings.side_buffer import SideBuffer
from embeddings.source import RowSource
from embeddings.spill.host_tier import HostTier
from embeddings.spill.interface import Spill
from embeddings.spill.no_spill import NoSpill
from kernels.backend import backend
from kernels.spec import CHANGED, NO_SLOT, TOUCHED, Layout

SPLIT_KEYS = 4096  # fewer are not worth a second thread


class EmbeddingTable:
    """Rows by (feature, id). Used by one thread.

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
        device: str = "cpu",
        disk_beside: Callable[[], int] = lambda: 0,
    ) -> None:
        """`disk_beside`: the bytes that others take of `disk_bytes`; the spill keeps half of it in any case."""
        self.config, self.seed, self.dim, self.tracked = config, seed, config.dim, tracked
        self.optimizer = RowOptimizer.of(config.optimizer)
        self.lr = self.optimizer.lr
        self.verbs = backend(device)
        self.layout = Layout(config.dim, self.optimizer.state_width(config.dim), config.dtype)
        capacity = capacity or Capacity.of_bytes(config, self.verbs, tracked=tracked)
        self._counters: Counter[str] = Counter()
        if base is not None and spill is None:
            raise ValueError("a table over a base needs a spill: evicted rows would be read from the base again")
        self.spill: Spill = spill or NoSpill(config.dim, self.layout.state_width)
        self.rules = Horizons()
        self.side = SideBuffer(capacity.num_side, config.dim, self.layout.state_width)
        self.quotas = Quotas(config.features, self.verbs.slot_bytes(self.layout))
        self.departures = Departures(
            self.verbs, self.spill, self.side, self.rules, self._counters, capacity.num_slots, tracked=tracked
        )
        self.memory = Memory(self.verbs, capacity, self.layout, self.departures, self.quotas)
        self.below = Below(self.spill, base, self.departures)
        self.admission = AdmissionControl(self.verbs, Admission.of(config.admission), config.features, tracked=tracked)
        self.expiry = Expiry(self.memory, self.rules, config.features)
        self.disk_cap = DiskCap(self.spill, self.rules, config.disk_bytes, beside=disk_beside)
        self.buffers = Buffers()
        self.changes = Changes(self.memory, self.side, self.rules)
        self.residence = Residence(
            verbs=self.verbs,
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
        self._pool = ThreadPoolExecutor(config.num_threads) if config.num_threads > 1 else None

    # a batch

    def advance(self, event_ms: int, num_samples: int) -> None:
        """Before a batch: event time, and samples learned so far. Moves horizons, ages counts, sweeps a little."""
        self.expiry.advance(event_ms)
        self.admission.advance(num_samples)
        self.disk_cap.advance(self.memory.present_features)

    def prefetch(self, features_K: UInt16Array, ids_K: Int64Array, event_ms_K: Int64Array) -> Prefetch:
        """Begins to recall the next batch's rows from below; neither an access nor an admission.

        To be given to the next lookup, with the same three arrays.
        """
        unique = self.verbs.unique(*as_keys(features_K, ids_K, event_ms_K))
        slots_U = self.verbs.find(self.memory.store, unique.features_U, unique.ids_U, unique.mixed_U)
        missing = np.flatnonzero(slots_U == NO_SLOT)
        recalled = None
        if len(missing):
            recalled = self.below.recall_ahead(unique.features_U[missing], unique.ids_U[missing])
        return Prefetch(features_K, ids_K, event_ms_K, unique, self.memory.writes, missing, recalled)

    def lookup(
        self,
        features_K: UInt16Array,
        ids_K: Int64Array,
        event_ms_K: Int64Array,
        *,
        scores_K: Float32Array | None = None,
        prefetched: Prefetch | None = None,
    ) -> Lookup:
        """Every key's row, made resident and held there: 1. unique keys; 2. a slot for each; 3. recalled or created.

        scores_K: with custom eviction, what each key is worth; rows of the lowest leave first.
        """
        if (scores_K is not None) != (self.config.eviction == "custom"):
            raise ValueError('a score for every key is wanted with eviction = "custom", and only then')
        if prefetched is not None and not prefetched.is_of(features_K, ids_K, event_ms_K):
            raise ValueError("these are not the keys that were prefetched: give the same arrays")
        self.departures.settle()
        tick = self.memory.hold()
        try:
            if prefetched is None:
                unique, staged = self.verbs.unique(*as_keys(features_K, ids_K, event_ms_K)), None
            else:
                unique, staged = prefetched.unique, prefetched.staged(self.memory.writes)
                self._counters["prefetched"] += len(prefetched.positions_N) if staged else 0
            unique, slots_U = self.residence.settle(unique, staged, scores_K)
        except BaseException:
            self.memory.release(tick)
            raise
        self._counters["keys"] += len(ids_K)
        return Lookup(self, tick=tick, erasures=self.memory.erasures, unique=unique, slots_U=slots_U)

    def gather(self, lookup: Lookup) -> Float32Array:
        """The rows of a lookup's keys, (K, D), copied; NaN where the key was forgotten since."""
        return self.gather_part(lookup, Part(0, len(lookup)))[0]

    def gather_part(self, lookup: Lookup, part: Part) -> tuple[Float32Array, Int64Array | None]:
        """The rows of some keys, or of bags of them; for `max` also which key of the part gave each number, else -1."""
        slots_U, inverse_K = self._slots(lookup), lookup.unique.inverse_K[part.start : part.stop]
        if part.offsets_B1 is None:
            out_KD = self.buffers.take(len(inverse_K), self.dim)
            return self.verbs.gather(self.memory.store, slots_U, inverse_K, out_KD), None
        pooled: tuple[Float32Array, Int64Array | None] = self.verbs.gather_pooled(
            self.memory.store, slots_U, inverse_K, part.offsets_B1, part.mode
        )
        return pooled

    def embed(self, lookup: Lookup) -> torch.Tensor:
        """The rows of a lookup's keys, (K, D); where gradients are on, its backward is `update`."""
        return autograd.embed(self, lookup, [Part(0, len(lookup))])[0]

    def embed_parts(self, lookup: Lookup, parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
        """A tensor for each part of a lookup, rows or pooled bags; the parts cover its keys in order."""
        bounds = [0, *(part.stop for part in parts)]
        if bounds[-1] != len(lookup) or [part.start for part in parts] != bounds[:-1]:
            raise ValueError(f"parts {bounds} do not cover the {len(lookup)} keys of the lookup in order")
        return autograd.embed(self, lookup, parts)

    def update(
        self,
        lookup: Lookup,
        grads_BD: Float32Array,
        bags_K: Int64Array | None = None,
        scales_K: Float32Array | None = None,
    ) -> None:
        """Sums the gradients of each key in the order of the batch, moves its row, and releases the lookup.

        Key k takes the gradient of row bags_K[k] (none given: k) times scales_K[k] (1). Counts and last-seen move too.
        A gradient that is not finite leaves the row's value and state as they are.
        """
        slots_U, unique = self._slots(lookup), lookup.unique
        order_K, offsets_U1 = self.verbs.group(unique.inverse_K, unique.occurrences_U)
        last_seen_U = self.rules.touch(unique.features_U, unique.last_seen_U)
        settings = last_seen_U, self.optimizer.step(self.lr, self.seed), self.config.eviction == "lfu"

        def move(start: int, stop: int) -> tuple[Int64Array, int]:
            return self.verbs.update(
                self.memory.store, slots_U, order_K, offsets_U1, grads_BD, *settings, start, stop, bags_K, scales_K
            )

        num_parts = self.config.num_threads if len(slots_U) >= SPLIT_KEYS else 1
        bounds = [len(slots_U) * part // num_parts for part in range(num_parts + 1)]
        moving = self._pool.map if self._pool is not None and num_parts > 1 else map
        for fresh_N, num_refused in moving(move, bounds[:-1], bounds[1:]):
            self._counters["refused_gradients"] += num_refused
            if self.tracked:
                self.changes.touched(fresh_N)
        lookup.release()

    def release(self, tick: int) -> None:
        """For lookups: their rows may leave from now on."""
        self.memory.release(tick)

    def abandon(self, tick: int) -> None:
        """For lookups nobody holds any more: their rows may leave with the next call."""
        self.memory.abandon(tick)

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """The rows, (K, D), NaN where there is none, and their status, (K); creates nothing.

        0 known, 1 unknown, 2 seen but not admitted, 3 forgotten.
        """
        features_K, ids_K, times_K = as_keys(features_K, ids_K, ids_K)
        unique = self.verbs.unique(features_K, ids_K, times_K)
        return read_rows(self.verbs, self.memory, self.below, self.admission, self.rules, unique)

    # versions

    def needs_cut(self, num_keys: int) -> bool:
        """Whether a batch of so many keys may have to wait for a cut: a batch begins only when this is false."""
        num_leaving = num_keys + self.quotas.most_leaving(self.memory.store.num_slots)
        return self.tracked and not self.side.can_take(num_leaving)

    def cut(self) -> Touched:
        """All rows touched, all keys forgotten since the last cut; the resident copy goes before the buffered one."""
        self._counters["cuts"] += 1
        return self.changes.cut()

    def cut_sketch(self) -> tuple[Int64Array, UInt8Array]:
        """Blocks of the admission sketch that changed since the last one, and their bytes, (B, 64)."""
        return self.admission.cut()

    def restore(self, touched: Touched) -> None:
        """Takes rows and forgettings of a version as this table's own: changed, but not to be told again."""
        self.contents.forget(touched.forgotten_features, touched.forgotten_ids)
        self.contents.write(touched, CHANGED)

    def restore_sketch(self, blocks_B: Int64Array, bytes_B64: UInt8Array) -> None:
        """Takes blocks of a version or a base as this table's own."""
        self.admission.restore(blocks_B, bytes_B64)

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

    def write(self, rows: Rows) -> None:
        """Rows from elsewhere replace what is here; the next cut tells them. ValueError where one is not finite."""
        if not (np.isfinite(rows.values).all() and np.isfinite(rows.states).all()):
            raise ValueError("rows to be written hold numbers that are not finite: leave those rows out")
        self.contents.write(Touched.of(rows), CHANGED | TOUCHED if self.tracked else CHANGED)

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """These keys have no row any more, in any tier; the next cut tells it."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        self.contents.forget(features_N, ids_N)
        if self.tracked:
            self.side.add_marks(features_N, ids_N)
        self._counters["forgotten"] += len(ids_N)

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

    def set_limits(self, limits: TableLimits) -> None:
        """Takes effect now; nothing may be held while device_bytes changes. ValueError changes nothing."""
        # first what may be refused
        lr = self.lr if limits.lr is None else self.optimizer.with_lr(limits.lr).lr
        if limits.device_bytes is not None:
            config = replace(self.config, device_bytes=limits.device_bytes)
            capacity = Capacity.of_bytes(config, self.verbs, tracked=self.tracked)
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

    def counters(self) -> dict[str, int]:
        """Since the table was made, by name: COUNTERS, and those of the spill."""
        counters = dict.fromkeys(COUNTERS, 0) | dict(self._counters) | self.spill.counters()
        return counters | {"overflowed": self.memory.num_overflowed}

    def rows_by_tier(self) -> dict[str, int]:
        """`device`, `disk`, and `host` where there is such a tier."""
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

    def check_integrity(self) -> None:
        """AssertionError where the parts contradict each other."""
        self.memory.check(self.changes.slots() if self.tracked else None)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self.below.close()

    # inside

    def _slots(self, lookup: Lookup) -> Int64Array:
        """The slots of a held lookup; NO_SLOT for keys that were forgotten since."""
        if lookup.released:
            raise ValueError("this lookup has been released (it takes one update): look the keys up again")
        if lookup.erasures == self.memory.erasures:
            return lookup.slots_U
        unique = lookup.unique
        slots_U = self.verbs.find(self.memory.store, unique.features_U, unique.ids_U, unique.mixed_U)
        slots_U[slots_U != lookup.slots_U] = NO_SLOT
        held_U: Int64Array = slots_U
        return held_U
