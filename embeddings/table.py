"""The embedding table: a row for any id, created when it is first looked up and moved to lower tiers when it is not.

Knows no device and no file: devices are Ops (kernels/ops.py), files are a Spill and a RowSource (tiers/interface.py).
"""

# K keys of a batch, U unique keys, N rows, B rows of gradients or blocks of the admission sketch, D dimension
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from springtide.embeddings.bulk import BulkOperations
from springtide.embeddings.config import TableLimits
from springtide.embeddings.counters import COUNTERS
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.lookup.handle import LookupSlice, StepTable, TableLookup
from springtide.embeddings.lookup.materialize import Fetch
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.memory.eviction import NO_LIMIT
from springtide.embeddings.memory.resident import PredictedMisses
from springtide.embeddings.policy.admission import Decision
from springtide.kernels.types import NO_SLOT, Array, RowColumns, UniqueKeys, priority_of
from springtide_client.rows.table_names import MAIN_TABLE


class EmbeddingTable(BulkOperations, StepTable[TableLookup]):
    """Rows by (feature, id): looked up, gathered and updated by their gradients, a batch at a time.

    Used by one thread. Keys and gradients may be arrays of the host or of the table's device; results are on the
    device. SpillError if a lower tier fails: the table is as before, and the call may be repeated.
    """

    @property
    def tables(self) -> dict[str, "EmbeddingTable"]:
        """This table by its name, as an EmbeddingCollection has several."""
        return {MAIN_TABLE: self}

    @property
    def model_tables(self) -> dict[str, "EmbeddingTable"]:
        """The tables of the rows that a model sees, by name, the main one ("") first."""
        return {MAIN_TABLE: self}

    @property
    def rows(self) -> StepTable[TableLookup]:
        """The rows that a model's step looks up in."""
        return self

    # training and reading

    @on_current_stream
    def advance(self, event_ms: int, num_samples: int) -> None:
        """Before a batch: set event time and the number of samples learned so far, and apply the policies.

        Raises expiry cutoffs, sweeps a part of memory, ages admission counts, and checks the size of the spill.
        """
        self.ttl.advance(event_ms)
        self.last_seen_floor.advance(event_ms)
        self.expiry_sweep.advance()
        self.admission.advance(num_samples)
        self.disk_cap.advance(self.memory.present_features)

    def begin_fetch(self, unique: UniqueKeys) -> Fetch:
        memory, ops = self.memory, self.ops
        slots_U = ops.find(memory.store, unique.features_U, unique.ids_U, unique.key_hash_U)
        missing_N = ops.xp.flatnonzero(slots_U == NO_SLOT)
        on_host = ops.fetch(missing_N, unique.features_U[missing_N], unique.ids_U[missing_N])
        missing = PredictedMisses(memory.changes.writes, memory.changes.removals, *on_host)
        has_missing = len(missing.ids_N) > 0
        fetched = self.lower_tiers.fetch_async(missing.features_N, missing.ids_N) if has_missing else None
        return Fetch(missing, fetched)

    @on_current_stream
    def lookup_unique(
        self,
        unique: UniqueKeys,
        *,
        scores_K: Array | None = None,
        fetch: Fetch | None = None,
        decision: Decision | None = None,
        num_occurrences: int | None = None,
    ) -> TableLookup:
        """1. Find a slot for each key. 2. Fetch or create rows.

        `decision`: what `decide` returned; the keys that it refuses are replaced already. `num_occurrences`: of all
        keys, if they occur more than once for each of `inverse_K`, or do not all count.
        """
        if (scores_K is not None) != self.priorities.policy.takes_scores:
            raise ValueError('eviction = "custom" needs a score for every key, and no other eviction takes scores')
        memory, ops, rows = self.memory, self.ops, None
        self.eviction_sink.retry_spill()
        tick = memory.pin()
        try:
            if fetch is not None:
                rows = fetch.rows_if_current(memory.changes.writes, len(unique.ids_U))
                self.counts["prefetched"] += len(fetch.missing.ids_N) if rows else 0
            predicted = None if fetch is None else fetch.missing
            unique, slots_U, rowless = self.materializer.ensure_resident(unique, rows, predicted, decision)
            lookup = TableLookup(
                memory,
                tick=tick,
                unique=unique,
                slots_U=slots_U,
                rowless=rowless,
                num_occurrences=num_occurrences,
            )
            if scores_K is not None:
                order_K, offsets_U1 = self._group(lookup)
                (scores_K,) = ops.put(scores_K)
                scores_U = scores_K[order_K[offsets_U1[1:] - 1]]  # the last occurrence counts
                ops.set_priorities(memory.store, slots_U, priority_of(scores_U, ops.xp))
        except BaseException:
            memory.release(tick)
            raise
        self.counts["keys"] += lookup.num_occurrences
        return lookup

    @on_current_stream
    def decide(self, unique: UniqueKeys) -> Decision:
        """Which of these keys get a row of their own, if they are looked up now: for a lookup of keys some of which
        other tables share. Changes nothing.
        """
        return self.materializer.decide(unique, None)[0]

    @on_current_stream
    def gather_slice(self, lookup: TableLookup, part: LookupSlice) -> tuple[Array, Array | None]:
        slots_U, inverse_K = self._current_slots(lookup), lookup.unique.inverse_K[part.start : part.stop]
        if part.offsets_B1 is None:
            out_KD = self.output_buffers.take(len(inverse_K), self.dim)
            return self.ops.gather(self.memory.store, slots_U, inverse_K, out_KD), None
        return self.ops.gather_pooled(self.memory.store, slots_U, inverse_K, part.offsets_B1, part.mode, part.scales_K)

    @on_current_stream
    def update(
        self, lookup: TableLookup, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None:
        slots_U, unique = self._current_slots(lookup), lookup.unique
        order_K, offsets_U1 = self._group(lookup)
        last_seen_U, by_count = self._last_seen_after_update(unique), self.priorities.by_count
        settings = last_seen_U, self.optimizer.step(self.step_lr, self.seed), by_count
        store = self.memory.store
        if not lookup.counts_each:  # the step counts each key once
            more_U = unique.occurrences_U - (offsets_U1[1:] - offsets_U1[:-1])
            touched_N = self.ops.touch(store, slots_U, more_U, last_seen_U, by_count)
            if self.tracked:
                self.dirty_rows.add(touched_N)

        def update_part(start: int, stop: int) -> tuple[Array, int]:
            return self.ops.update(
                store, slots_U, order_K, offsets_U1, grads_BD, *settings, start, stop, bags_K, scales_K
            )

        for dirty_N, num_refused in self.pool.map(update_part, len(slots_U)):
            self.counts.add("refused_gradients", num_refused)
            if self.tracked:
                self.dirty_rows.add(dirty_N)
        self._note_learned_from(lookup)
        try:
            self.priorities.refresh(store, slots_U)
        finally:
            lookup.release()

    @on_current_stream
    def read_rows(self, lookup: TableLookup) -> RowColumns:
        return self.ops.read(self.memory.store, self._current_slots(lookup), self.pool.parallel_for)

    @on_current_stream
    def write_rows(self, lookup: TableLookup, values_UD: Array, states_US: Array) -> None:
        slots_U, store = self._current_slots(lookup), self.memory.store

        def write_part(start: int, stop: int) -> Array:
            part = slice(start, stop)
            return self.ops.write_learned(store, slots_U[part], values_UD[part], states_US[part], self.seed)

        dirty = self.pool.map(write_part, len(slots_U))
        self._note_learned(slots_U, dirty[0] if len(dirty) == 1 else self.ops.xp.concatenate(dirty))

    @on_current_stream
    def touch(self, lookup: TableLookup) -> None:
        slots_U, unique = self._current_slots(lookup), lookup.unique
        last_seen_U, by_count = self._last_seen_after_update(unique), self.priorities.by_count
        store = self.memory.store
        dirty_N = self.ops.touch(store, slots_U, unique.occurrences_U, last_seen_U, by_count)
        self._note_learned_from(lookup)
        try:
            self._note_learned(slots_U, dirty_N)
        finally:
            lookup.release()

    @on_current_stream
    def find(self, features_K: Array, ids_K: Array) -> tuple[Array, Array]:
        """The rows, (K, D), NaN for keys without one, and their status, (K). Creates nothing.

        Status 0: known, 1: unknown, 2: seen but not admitted, 3: forgotten.
        """
        return self.find_unique(self.unique(features_K, ids_K, ids_K))

    @on_current_stream
    def find_unique(self, unique: UniqueKeys) -> tuple[Array, Array]:
        """As `find`, of the keys of a batch."""
        return self.materializer.find(unique)

    # versions

    def max_keys(self) -> int:
        """The most keys of a batch that may be looked up before the next `take_delta`."""
        self.eviction_sink.drain_inflight()
        return self.evicted_dirty.num_free - self._max_evictions(0) if self.tracked else NO_LIMIT

    def has_room(self, num_keys: int, wait_seconds: float = 0.0) -> bool:
        """Return True if the spill can take all rows that a batch of this many keys may evict, and those before them.

        Waits at most so long for that. Then only a disk that fails in the middle of the batch makes a lookup raise
        SpillError. The buffer of rows that await the next version is the matter of `max_keys`.
        """
        return self.eviction_sink.has_room(self._max_evictions(num_keys), wait_seconds)

    def clock_state(self) -> dict[str, Any]:
        """The state besides rows, sketch and expiry cutoffs, as a version contains it: JSON."""
        return {
            "sketch_age": self.admission.age,
            "event_ms": self.ttl.event_ms,
            "sweep": self.expiry_sweep.next_slot,
            "last_seen_floor": self.last_seen_floor.state(),
        }

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Apply what `clock_state` returned."""
        self.admission.age = int(state.get("sketch_age", 0))
        self.ttl.event_ms = int(state.get("event_ms", 0))
        self.expiry_sweep.next_slot = int(state.get("sweep", 0))
        self.last_seen_floor.restore(state.get("last_seen_floor", {}))

    @property
    def expiry_cutoffs(self) -> dict[int, int]:
        """By feature, in ms of event time: rows last seen before have expired."""
        return self.cutoffs.as_dict()

    def raise_expiry_cutoffs(self, cutoffs: Mapping[int, int]) -> None:
        """Let rows expire in every tier; a cutoff never falls."""
        if self.cutoffs.raise_to(cutoffs):
            self.spill.purge(self.cutoffs.as_dict())

    @property
    def num_removals(self) -> int:
        """Changes whenever rows leave memory or change slots other than for a lookup.

        A prefetch that runs on a CUDA stream of its own must come after the work that changed it.
        """
        return self.memory.changes.removals

    # limits and statistics

    @property
    def step_lr(self) -> float:
        """The learning rate of the next update: `lr`, times the factor of a schedule."""
        return self.lr * self.lr_factor

    def set_lr(self, lr: float) -> None:
        self.lr = self.optimizer.with_lr(lr).lr

    @on_current_stream
    def set_limits(self, limits: TableLimits) -> None:
        """Apply limits now. ValueError, and nothing changes, if one is invalid or lookups are open during a resize."""
        self.eviction_sink.drain_inflight()
        # first what may raise
        lr = self.lr if limits.lr is None else self.optimizer.with_lr(limits.lr).lr
        if limits.device_bytes is not None:
            config = replace(self.config, device_bytes=limits.device_bytes)
            capacity = Capacity.of_bytes(config, self.ops, tracked=self.tracked)
            self.resize(capacity.num_slots, capacity.num_overflow)
            self.evicted_dirty.capacity, self.config = capacity.num_evicted_dirty, config
        self.lr = lr
        if limits.disk_bytes is not None:
            self.disk_cap.set_limit(limits.disk_bytes)
            self.last_seen_floor.set_limit(limits.disk_bytes)
        if limits.quota_bytes:
            self.quotas.set_limits(limits.quota_bytes, self.memory.features())
            self.memory.enforce_quotas()
        self.ttl.set_ttl(limits.ttl_seconds)
        self.admission.set_min_counts(limits.min_count)

    @on_current_stream
    def counters(self) -> dict[str, int]:
        """Counts since the table was made, by name: COUNTERS, and those of the spill."""
        self.eviction_sink.drain_inflight()
        self.counts.fetch_pending(self.ops)
        counters = dict.fromkeys(COUNTERS, 0) | dict(self.counts) | self.spill.counters()
        return counters | {"overflowed": self.memory.num_overflowed}

    def rows_by_tier(self) -> dict[str, int]:
        """Rows in the tiers `device`, `disk`, and `host` if there is a host tier."""
        host = self.host_tier
        self.eviction_sink.drain_inflight()
        rows = {"device": self.memory.num_rows, "disk": self.disk.num_rows()}
        return rows if host is None else rows | {"host": host.num_host_rows()}

    def bytes_by_tier(self) -> dict[str, int]:
        """Bytes of the same tiers; `spill_memory` is the memory that the spill needs besides its queue."""
        host = self.host_tier
        device = self.memory.num_bytes() + self.dirty_rows.num_bytes() + self.admission.num_bytes()
        sizes = {"device": device, "disk": self.disk.num_bytes(), "spill_memory": self.disk.memory_bytes()}
        return sizes if host is None else sizes | {"host": host.host_bytes()}

    def stall_reason(self) -> str:
        """Why a call has been waiting for the spill for more than a second; empty if none has. Any thread."""
        return self.spill.stall_reason()

    def _max_evictions(self, num_keys: int) -> int:
        return num_keys + self.quotas.max_evictions(self.memory.store.num_slots)

    def _note_learned(self, slots_U: Array, dirty_N: Array) -> None:
        """Note rows that changed, and those that became dirty by that."""
        if self.tracked:
            self.dirty_rows.add(dirty_N)
        self.priorities.refresh(self.memory.store, slots_U)

    def _note_learned_from(self, lookup: TableLookup) -> None:
        """Count a lookup's keys. Only now: a lookup that waits to be learned from is in no version, in no part."""
        if lookup.rowless is not None:
            self.admission.count(lookup.rowless)
        self.last_seen_floor.add_keys(lookup.num_occurrences)

    def _group(self, lookup: TableLookup) -> tuple[Array, Array]:
        """The keys of a lookup by unique key: see Ops.group."""
        unique = lookup.unique
        if lookup.counts_each:
            return self.ops.group(unique.inverse_K, unique.occurrences_U)
        return self.ops.group(unique.inverse_K, self.ops.count_values(unique.inverse_K, len(unique.ids_U)))

    def _last_seen_after_update(self, unique: UniqueKeys) -> Array:
        floor_ms = self.last_seen_floor.ms
        return self.cutoffs.last_seen_after_update(self.ops, unique.features_U, unique.last_seen_U, floor_ms)

    def _current_slots(self, lookup: TableLookup) -> Array:
        """The slots of an open lookup; NO_SLOT for keys that were forgotten since."""
        if lookup.released:
            raise ValueError("this lookup has been released (it takes one update): look the keys up again")
        memory, unique = self.memory, lookup.unique
        if lookup.erasures == memory.changes.erasures:
            return lookup.slots_U
        slots_U = self.ops.find(memory.store, unique.features_U, unique.ids_U, unique.key_hash_U)
        return self.ops.xp.where(slots_U == lookup.slots_U, slots_U, NO_SLOT)
