"""Rows in the host's memory, between a device and the spill: to the table it is the spill.

Rows that the device has fetched are evicted first; evicted rows go to the spill below. A row that changed on the
device must be written back even if a base has it by then, because an older copy may have been spilled meanwhile.

Without a spill below, evicted rows are lost. Then a row is either on the device or here: who fetches it takes it
(`take`), so that the host never loses a row in favor of a copy of one that the device has.
"""

# U unique keys, N rows, V victims
import threading
from collections import Counter
from contextlib import suppress

import numpy as np

from springtide.embeddings.errors import SpillError
from springtide.embeddings.policy.removals import RemovalReason, Removals
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.interface import Spill
from springtide.embeddings.tiers.record_kinds import ROW
from springtide.kernels.ops import Ops
from springtide.kernels.types import NO_SLOT, RowColumns, RowLayout
from springtide_client.keys import hash_keys
from springtide_client.rows.row_block import RowBlock, key_order

COUNTS = "hits_host", "host_evicted", "host_spilled", "host_dropped"
CACHED_ABOVE, ONLY_HERE = -1, 0  # priorities
FLAG_BITS = 3  # the flags of kernels.types, which stay zero; a row's generation is stored in the bits above them
PART = 16  # the overflow area has a sixteenth of the slots


class HostTier:
    """An LRU store of rows. One thread writes; any thread may find. `ops` must be its own, of the CPU."""

    keeps_rows = True

    def __init__(self, spill: Spill, *, num_rows: int, layout: RowLayout, ops: Ops) -> None:
        """At most about `num_rows` rows. ValueError if that is less than a bucket."""
        width = ops.width
        if num_rows < width:
            raise ValueError(f"a host tier needs at least {width} rows, not {num_rows}")
        self.spill, self.ops, self.is_exclusive = spill, ops, not spill.keeps_rows
        num_slots = num_rows // width * width
        self._store = ops.allocate(num_slots, max(width, num_slots // PART), layout)
        self._lock = threading.Lock()  # of all that follows
        self._inflight: list[RowBlock] = []  # evicted rows that the spill has not taken yet
        self._num_rows = 0
        self._num_unspilled = 0  # about how many of the rows here the spill has no copy of
        self._clock = 0
        self._generation, self._covered_generation = 0, -1  # the newest, and the newest that a base covers
        self._cutoffs = ExpiryCutoffs()
        self._counts = Counter(dict.fromkeys(COUNTS, 0))
        self.removals = Removals()  # replaced by the table's
        self._purged: list[tuple[UInt16Array, Int64Array]] = []

    @property
    def host_tier(self) -> "HostTier":
        return self

    @staticmethod
    def rows_of_bytes(num_bytes: int, layout: RowLayout, ops: Ops) -> int:
        """The number of rows that fit into this many bytes."""
        slot_bytes, width = ops.slot_bytes(layout), ops.width
        return max(0, (num_bytes - width * 2 * slot_bytes) * PART // (slot_bytes * (PART + 2)) // width * width)

    def write(self, rows: RowBlock, num_new: int) -> None:
        """1. Spill rows in flight. 2. Insert these rows. 3. Spill the victims; if that fails, they stay in flight."""
        self._spill_inflight()
        if not len(rows):
            return
        with self._lock:
            self._num_unspilled += num_new
            self._insert(rows)
        with suppress(SpillError):  # raised again by the next write, before it inserts its rows
            self._spill_inflight()

    def has_room(self, num_rows: int, wait_seconds: float = 0.0) -> bool:
        """Return True if the spill has room for the rows in flight, and for as many victims as rows are written."""
        return self.spill.has_room(num_rows + sum(map(len, self._inflight)), wait_seconds)

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        self._spill_inflight()  # else an older row would be spilled after its tombstone
        self.spill.add_tombstones(features_N, ids_N)
        with self._lock:
            slots_N = self.ops.find(self._store, features_N, ids_N, hash_keys(features_N, ids_N))
            self._erase(slots_N[slots_N != NO_SLOT])

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        """Look in 1. the store, whose rows are cached above from now on, 2. the rows in flight, 3. the spill."""
        layout, key_hash_U = self._store.layout, hash_keys(features_U, ids_U)
        with self._lock:
            slots_U = self.ops.find(self._store, features_U, ids_U, key_hash_U)
            here_U = slots_U != NO_SLOT
            columns = self.ops.read(self._store, slots_U[here_U])
            if not self.is_exclusive:
                cached = np.full(len(columns.flags_N), CACHED_ABOVE, np.int64)
                self.ops.set_priorities(self._store, slots_U[here_U], cached)
            inflight = list(self._inflight)
            self._counts["hits_host"] += len(columns.flags_N)
        if here_U.all():
            rows = RowBlock(features_U, ids_U, *columns[:4], known_hash=key_hash_U)
            return FoundRows(rows, np.full(len(ids_U), ROW, np.uint8))
        found = FoundRows.nothing(features_U, ids_U, layout.dim, layout.state_width)
        found.put(here_U, ROW, columns[:4])
        missing = np.flatnonzero(~here_U)
        for batch in reversed(inflight):
            missing = found.put_batch(missing, batch)
        if len(missing):
            found.put_found(missing, self.spill.find(features_U[missing], ids_U[missing]))
        return found

    def is_empty_for(self, num_keys: int) -> bool:
        with self._lock:
            holds_rows = self._num_rows > 0 or len(self._inflight) > 0
        return not holds_rows and self.spill.is_empty_for(num_keys)

    def take(self, features_N: UInt16Array, ids_N: Int64Array) -> BoolArray:
        """Delete rows that were fetched to the device. Return which of them were still here."""
        with self._lock:
            slots_N = self.ops.find(self._store, features_N, ids_N, hash_keys(features_N, ids_N))
            here_N: BoolArray = slots_N != NO_SLOT
            self._erase(slots_N[here_N])
        return here_N

    def read_all(self) -> RowBlock:
        with self._lock:
            num_slots = self._store.num_slots + self._store.num_overflow
            slots_N = self.ops.occupied_slots(self._store, 0, num_slots)
            parts = [self._read(slots_N, *self.ops.keys_of(self._store, slots_N))[0]]
            parts += reversed(self._inflight)
        rows = RowBlock.concatenate([*parts, self.spill.read_all()])
        return rows.take(key_order(rows.key_hash, rows.feature, once=True))  # the copy of the highest tier

    def report_purged(self, reports: bool) -> None:
        self.spill.report_purged(reports)

    def take_purged(self) -> tuple[UInt16Array, Int64Array]:
        with self._lock:
            parts, self._purged = [*self._purged, self.spill.take_purged()], []
        features, ids = zip(*parts, strict=True)
        return np.concatenate(features), np.concatenate(ids)

    def open_generation(self) -> int:
        closed = self.spill.open_generation()
        with self._lock:
            self._generation = closed + 1
        return closed

    def destroy_generations(self, upto: int) -> None:
        """Keep the rows of those generations here, but drop them when they are evicted: the base has them."""
        with self._lock:
            self._covered_generation = max(self._covered_generation, upto)
        self.spill.destroy_generations(upto)

    def purge(self, cutoffs: dict[int, int]) -> None:
        with self._lock:
            self._cutoffs.raise_to(cutoffs)
        self.spill.purge(cutoffs)

    def stall_reason(self) -> str:
        return self.spill.stall_reason()

    def set_limit(self, num_bytes: int) -> None:
        self.spill.set_limit(num_bytes)

    def fraction_to_forget(self) -> float:
        return self.spill.fraction_to_forget()

    def last_seen_quantile(self, fraction: float) -> int | None:
        return self.spill.last_seen_quantile(fraction)

    def num_host_rows(self) -> int:
        return self._num_rows

    def host_bytes(self) -> int:
        """Bytes of memory: of the store, and of the rows in flight."""
        return self._store.num_bytes + sum(batch.num_bytes for batch in self._inflight)

    def num_rows(self) -> int:
        return self._num_unspilled + self.spill.num_rows()

    def num_bytes(self) -> int:
        return self.spill.num_bytes()

    def memory_bytes(self) -> int:
        return self.host_bytes() + self.spill.memory_bytes()

    def counters(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts) | self.spill.counters()

    def close(self) -> None:
        self.spill.close()

    def check_integrity(self) -> None:
        """AssertionError if index and rows contradict each other."""
        with self._lock:
            slots_N = self.ops.occupied_slots(self._store, 0, self._store.num_slots + self._store.num_overflow)
            features_N, ids_N = self.ops.keys_of(self._store, slots_N)
            found_N = self.ops.find(self._store, features_N, ids_N, hash_keys(features_N, ids_N))
            assert np.array_equal(found_N, slots_N), "a key is not found in its slot"
            assert len(slots_N) == self._num_rows, f"{len(slots_N)} slots are occupied, {self._num_rows} are counted"
            assert not len(slots_N) or slots_N[-1] < self._store.num_slots, "a row was left in the overflow area"

    # the following are called with the lock held

    def _insert(self, rows: RowBlock) -> None:
        self._clock += 1
        store, tick = self._store, self._clock
        inserted = self.ops.find_or_insert(store, rows.feature, rows.id, rows.key_hash, tick, tick)
        self._num_rows += int(np.count_nonzero(inserted.slots_U[inserted.new_N] != NO_SLOT))
        if len(inserted.victim_slots_V):
            # copied out before their slots are written over
            self._num_rows -= len(inserted.victim_slots_V)
            keys = inserted.victim_features_V, inserted.victim_ids_V
            self._evict(*self._read(inserted.victim_slots_V, *keys))
        housed_N = (inserted.slots_U != NO_SLOT) & (inserted.slots_U < store.num_slots)
        flags_N = np.full(len(rows), self._generation << FLAG_BITS, np.int64)
        columns = RowColumns(*rows.contents, flags_N)
        if not housed_N.all():
            # too many keys for a bucket: those without a slot are spilled at once
            in_overflow_N = inserted.slots_U >= store.num_slots
            self._erase(inserted.slots_U[in_overflow_N])
            self._evict(rows.take(~housed_N), flags_N[~housed_N])
            columns = RowColumns(*(column[housed_N] for column in columns))
        slots_N = np.ascontiguousarray(inserted.slots_U[housed_N])
        self.ops.scatter(store, slots_N, columns)
        self.ops.set_priorities(store, slots_N, np.full(len(slots_N), ONLY_HERE, np.int64))

    def _evict(self, rows: RowBlock, flags_V: Int64Array) -> None:
        """Put victims in flight, except those that have expired or that a base has. Without a spill they are lost."""
        needed_V: BoolArray = (flags_V >> FLAG_BITS) > self._covered_generation
        if self._cutoffs:
            alive_V = self._cutoffs.alive(rows.feature, rows.last_seen)
            needed_V &= alive_V
            if self.removals.wanted:
                self._purged.append((rows.feature[~alive_V], rows.id[~alive_V]))
        num_needed = int(np.count_nonzero(needed_V))
        self._counts["host_evicted"] += len(rows)
        self._counts["lost" if self.is_exclusive else "host_spilled"] += num_needed
        self._counts["host_dropped"] += len(rows) - num_needed
        if num_needed:
            rows = rows.take(needed_V)
            if self.is_exclusive:
                self.removals.add(RemovalReason.CAPACITY, rows.feature, rows.id)
            self._inflight.append(rows.take(key_order(rows.key_hash, rows.feature)))

    def _read(self, slots_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array) -> tuple[RowBlock, Int64Array]:
        columns = self.ops.read(self._store, slots_N)
        return RowBlock(features_N, ids_N, *columns[:4]), columns.flags_N

    def _erase(self, slots_N: Int64Array) -> None:
        self.ops.erase(self._store, slots_N)
        self._num_rows -= len(slots_N)

    def _spill_inflight(self) -> None:
        """Called by the writing thread without the lock; a find sees rows in flight until the spill has them."""
        while self._inflight:
            batch = self._inflight[0]
            share = min(1.0, self._num_unspilled / max(1, self._num_rows + len(batch)))
            num_new = round(share * len(batch))
            self.spill.write(batch, num_new)
            with self._lock:
                self._inflight.pop(0)
                self._num_unspilled -= num_new
