"""Makes a batch's rows resident: decides admission, finds slots, fetches or creates missing rows; or only reads."""

# K keys of a batch, U unique keys, N some of them, D dimension
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from springtide.embeddings.config import TableConfig
from springtide.embeddings.counters import TableCounters
from springtide.embeddings.errors import SpillError
from springtide.embeddings.eviction_policy import Priorities
from springtide.embeddings.memory.eviction import EvictionSink
from springtide.embeddings.memory.resident import Placement, PredictedMisses, ResidentRows
from springtide.embeddings.policy.admission import AdmissionControl, Decision, RowlessKeys, share_rows
from springtide.embeddings.policy.removals import RemovalReason, Removals, RemovedKeys
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.lower_tiers import LowerTiers
from springtide.kernels.ops import Ops
from springtide.kernels.types import NEEDS_SPILL, NO_SLOT, SPILLED, Array, RowColumns, UniqueKeys

KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = range(4)  # status of a key that is read


@dataclass(frozen=True)
class Fetch:
    """The rows that a table's next lookup will miss in memory. They are dropped once any key was written."""

    missing: PredictedMisses
    fetched: "Future[FoundRows] | None"  # None: the lower tiers have no row of any key

    def rows_if_current(self, writes: int, num_unique: int) -> "PrefetchedRows | None":
        """Wait for the fetched rows. None if no key is missing, or if the rows may be outdated.

        `writes`: of memory.changes, now.
        """
        if self.fetched is None:
            is_current = len(self.missing.ids_N) > 0 and writes == self.missing.writes
            return PrefetchedRows.of(self.missing.positions_N, None, num_unique) if is_current else None
        # result() would raise the failure again, with a traceback that refers to every frame and lookup of the caller
        if isinstance(self.fetched.exception(), SpillError) or writes != self.missing.writes:
            return None  # the lookup fetches the rows itself, and gets the error if there still is one
        return PrefetchedRows.of(self.missing.positions_N, self.fetched.result(), num_unique)


@dataclass(frozen=True)
class PrefetchedRows:
    """Rows of some of a batch's unique keys that were fetched before the lookup."""

    place_U: Int64Array  # position in `fetched`; -1: not fetched
    fetched: FoundRows | None  # None: the lower tiers have no row of any of them

    @staticmethod
    def of(positions_N: Int64Array, fetched: FoundRows | None, num_unique: int) -> "PrefetchedRows":
        place_U = np.full(num_unique, -1, np.int64)
        place_U[positions_N] = np.arange(len(positions_N))
        return PrefetchedRows(place_U, fetched)

    def keep(self, kept_U: BoolArray, num_unique: int) -> "PrefetchedRows":
        """The rows for a batch of `num_unique` keys that starts with the kept ones; the others are not fetched."""
        place_V = np.full(num_unique, -1, np.int64)
        place_V[: np.count_nonzero(kept_U)] = self.place_U[kept_U]
        return PrefetchedRows(place_V, self.fetched)


@dataclass(frozen=True, kw_only=True)
class Materializer:
    """Gives every unique key of a batch a row in memory. If a lower tier fails, memory has the same rows as before.

    Arrays of U and K are on the device; admission and the lower tiers take arrays of the host.
    """

    ops: Ops
    memory: ResidentRows
    lower_tiers: LowerTiers
    eviction_sink: EvictionSink
    removals: Removals
    admission: AdmissionControl
    cutoffs: ExpiryCutoffs
    counters: TableCounters
    config: TableConfig
    priorities: Priorities
    seed: int

    def ensure_resident(
        self,
        unique: UniqueKeys,
        prefetched: PrefetchedRows | None,
        predicted: PredictedMisses | None,
        decision: Decision | None = None,
    ) -> tuple[UniqueKeys, Array, RowlessKeys | None]:
        """The batch, with keys that are not admitted replaced by shared keys, its slots, and keys yet to be counted.

        The caller has pinned a tick, with which the rows are stamped. `decision`: on the keys of the batch, whose keys
        are replaced already. SpillError.
        """
        rowless = admitted_N = taken = None
        if decision is not None:
            rowless, admitted_N = decision.rowless, decision.admitted_N
        elif self.admission:
            unique, prefetched, rowless, admitted_N = self._admit(unique, prefetched)
            predicted = None  # the keys may be others now
        if self.lower_tiers.spill.is_exclusive:
            # before rows are evicted into the host tier, which might evict rows of this batch for them
            prefetched = taken = self._take(unique, prefetched)
        try:
            placement = self.memory.find_or_insert(unique.features_U, unique.ids_U, unique.key_hash_U, predicted)
            slots_U = placement.slots_U
            if len(placement.new_N) or self.cutoffs:
                try:
                    self._fill(unique, placement, prefetched)
                except BaseException:
                    self.memory.erase(slots_U[placement.new_N])  # they hold no row
                    raise
        except BaseException:
            if taken is not None and taken.fetched is not None:
                self.lower_tiers.put_back(taken.fetched)
            raise
        self.counters["hits_device"] += len(slots_U) - len(placement.new_N)
        if admitted_N is not None:
            num_admitted = int(np.count_nonzero(admitted_N))
            self.counters["admitted"] += num_admitted
            self.counters["not_admitted"] += len(admitted_N) - num_admitted
        return unique, slots_U, rowless

    def decide(self, unique: UniqueKeys, prefetched: PrefetchedRows | None) -> tuple[Decision, PrefetchedRows]:
        """Find the keys that have no row in any tier, and which of them may have one now; and the rows fetched."""
        features_U, ids_U, key_hash_U = unique.features_U, unique.ids_U, unique.key_hash_U
        slots_U = self.ops.find(self.memory.store, features_U, ids_U, key_hash_U)
        missing_M = self.ops.xp.flatnonzero(slots_U == NO_SLOT)
        expired = self.memory.expired_positions(slots_U, features_U, self.cutoffs)
        missing, expired, features_M, ids_M = self.ops.fetch(
            missing_M, expired, features_U[missing_M], ids_U[missing_M]
        )
        fetched = self._fetch(missing, features_M, ids_M, prefetched)
        prefetched = PrefetchedRows.of(missing, fetched, len(ids_U))
        not_found = missing if fetched is None else missing[~fetched.without_expired(self.cutoffs).found_U]
        positions_N = np.sort(np.concatenate([not_found, expired[expired >= 0]]))
        (rowless_N,) = self.ops.put(positions_N)
        features_N, key_hash_N, occurrences_N, last_seen_N = self.ops.fetch(
            features_U[rowless_N], key_hash_U[rowless_N], unique.occurrences_U[rowless_N], unique.last_seen_U[rowless_N]
        )
        rowless = RowlessKeys(features_N, key_hash_N, occurrences_N)
        return Decision(positions_N, rowless, last_seen_N, self.admission.admits(rowless)), prefetched

    def find(self, unique: UniqueKeys) -> tuple[Array, Array]:
        """The rows of a batch's keys, (K, D), NaN for keys without one, and their status (K), both on the device.

        Changes nothing in any tier. SpillError.
        """
        ops, memory, cutoffs = self.ops, self.memory, self.cutoffs
        xp = ops.xp
        features_U, ids_U, key_hash_U = unique.features_U, unique.ids_U, unique.key_hash_U
        slots_U = ops.find(memory.store, features_U, ids_U, key_hash_U)
        expired = memory.expired_positions(slots_U, features_U, cutoffs)
        if len(expired):
            expired = ops.unpadded(expired)
        missing = xp.flatnonzero(slots_U == NO_SLOT)
        if len(missing) == len(expired) == 0:
            return ops.gather(memory.store, slots_U, unique.inverse_K), xp.zeros(len(unique.inverse_K), np.uint8)
        values_UD = ops.gather(memory.store, slots_U, xp.arange(len(slots_U)))
        status_U = xp.full(len(slots_U), KNOWN, np.uint8)
        values_UD[expired], status_U[expired] = np.nan, FORGOTTEN
        features_N, ids_N, key_hash_N = ops.fetch(features_U[missing], ids_U[missing], key_hash_U[missing])
        fetched = self.lower_tiers.fetch(features_N, ids_N).without_expired(cutoffs)
        found_N = fetched.found_U
        status_N = np.where(found_N, KNOWN, np.where(fetched.forgotten_U, FORGOTTEN, UNKNOWN)).astype(np.uint8)
        rowless = np.flatnonzero(status_N == UNKNOWN)
        status_N[rowless[self.admission.was_seen(features_N[rowless], key_hash_N[rowless])]] = NOT_ADMITTED
        found, rows, status = ops.put(np.flatnonzero(found_N), fetched.rows.value[found_N], status_N)
        values_UD[missing[found]], status_U[missing] = rows, status
        return values_UD[unique.inverse_K], status_U[unique.inverse_K]

    def _admit(
        self, unique: UniqueKeys, prefetched: PrefetchedRows | None
    ) -> tuple[UniqueKeys, PrefetchedRows, RowlessKeys, BoolArray]:
        """Give keys that were seen too seldom a shared row.

        Return the batch, its fetched rows, the keys to count, and which of them are admitted.
        """
        decision, prefetched = self.decide(unique, prefetched)
        if not decision.admitted_N.all():
            unique, kept_U = share_rows(self.ops, unique, decision.not_admitted)
            prefetched = prefetched.keep(kept_U, len(unique.ids_U))
        return unique, prefetched, decision.rowless, decision.admitted_N

    def _take(self, unique: UniqueKeys, prefetched: PrefetchedRows | None) -> PrefetchedRows:
        """Fetch the missing keys' rows before any is inserted, and delete them below."""
        slots_U = self.ops.find(self.memory.store, unique.features_U, unique.ids_U, unique.key_hash_U)
        missing_M = self.ops.xp.flatnonzero(slots_U == NO_SLOT)
        missing, features_M, ids_M = self.ops.fetch(missing_M, unique.features_U[missing_M], unique.ids_U[missing_M])
        fetched = self._fetch(missing, features_M, ids_M, prefetched)
        taken = None if fetched is None else self.lower_tiers.take(fetched)
        return PrefetchedRows.of(missing, taken, len(unique.ids_U))

    def _fill(self, unique: UniqueKeys, placement: Placement, prefetched: PrefetchedRows | None) -> None:
        """Write rows into the slots of new keys: fetched ones, else initial values. Expired rows are created again."""
        slots_U, new_N = placement.slots_U, placement.new_N
        slots_N = slots_U[new_N]
        expired = self._expired(unique, slots_U, new_N)
        stored = self._fetch(placement.positions_N, placement.features_N, placement.ids_N, prefetched)
        if stored is None:
            self._create(unique, slots_N, new_N)
            self.counters["created"] += len(new_N)
            if self.removals.wanted:
                self.removals.add_created(placement.features_N, placement.ids_N)
        else:
            self._fill_found(unique, placement, slots_N, stored)
        if len(expired):
            self._recreate_expired(unique, slots_U, expired)
        self.priorities.refresh(self.memory.store, slots_N)
        self.eviction_sink.count_premature(unique.key_hash_U[new_N], self.memory.pins.clock)

    def _fill_found(self, unique: UniqueKeys, placement: Placement, slots_N: Array, stored: FoundRows) -> None:
        """Write what the lower tiers had into the slots of new keys, and create the rest."""
        fetched, created, slots_C = stored.without_expired(self.cutoffs), placement.new_N, slots_N
        found_N = fetched.found_U
        if found_N.any():
            slots_F, columns = self._upload_found(fetched, slots_N)
            self.ops.scatter(self.memory.store, slots_F, columns)
            self.priorities.set_counts(self.memory.store, slots_F, columns.counts_N)
            (not_found,) = self.ops.put(np.flatnonzero(~found_N))
            created, slots_C = placement.new_N[not_found], slots_N[not_found]
        if len(created):
            self._create(unique, slots_C, created)
        self._count(fetched, len(created))
        if self.removals.wanted:
            self.removals.add_created(placement.features_N[~found_N], placement.ids_N[~found_N])
            if fetched is not stored:
                self._report_expired_below(placement, stored.found_U & ~found_N)

    def _create(self, unique: UniqueKeys, slots_N: Array, positions_N: Array) -> None:
        keys_N = unique.features_U[positions_N], unique.ids_U[positions_N]
        self.ops.create(self.memory.store, slots_N, *keys_N, self.seed, self.config.init_scale)

    def _recreate_expired(self, unique: UniqueKeys, slots_U: Array, expired: Array) -> None:
        """Give expired rows in memory initial values; the list of their positions may be padded."""
        xp, num = self.ops.xp, self.ops.num_listed(expired)
        slots_N = xp.where(expired == NO_SLOT, NO_SLOT, slots_U[expired])
        self._create(unique, slots_N, expired)
        if self.removals.wanted:
            self._report_expired(unique.features_U[expired], unique.ids_U[expired], expired)
            self._note_old_copies(slots_N)
        self.ops.set_priorities(self.memory.store, slots_N, xp.zeros(len(expired), np.int64))
        self.priorities.refresh(self.memory.store, slots_N)
        for name, number in (("created", num), ("expired", num), ("hits_device", -num)):
            self.counters.add(name, number)

    def _report_expired_below(self, placement: Placement, expired_N: BoolArray) -> None:
        """Report rows that had expired in a lower tier, and were created again."""
        self.removals.add(RemovalReason.EXPIRED, placement.features_N[expired_N], placement.ids_N[expired_N])
        (positions,) = self.ops.put(np.flatnonzero(expired_N))
        self._note_old_copies(placement.slots_U[placement.new_N[positions]])

    def _report_expired(self, features_N: Array, ids_N: Array, expired: Array) -> None:
        """Report rows that had expired in memory, and were created again; the list may be padded."""
        wait = self.ops.download_async(expired, features_N, ids_N)

        def receive() -> RemovedKeys:
            positions_N, *keys = wait()
            features_M, ids_M = (column[positions_N >= 0] for column in keys)
            return RemovedKeys(RemovalReason.EXPIRED, features_M, ids_M)

        self.removals.add_inflight(receive)

    def _note_old_copies(self, slots_N: Array) -> None:
        """Note that the spill may have copies of rows that were created again, so that they are not reported."""
        if self.lower_tiers.spill.keeps_rows:
            self.ops.set_flags(self.memory.store, slots_N, NEEDS_SPILL | SPILLED)

    def _upload_found(self, fetched: FoundRows, slots_N: Array) -> tuple[Array, RowColumns]:
        """The slots of the found rows, without those that expired meanwhile, and the rows on the device."""
        if fetched.upload is None:
            columns = fetched.columns(is_exclusive=self.lower_tiers.spill.is_exclusive)
            positions, *columns_F = self.ops.put(*columns)
            return slots_N[positions], RowColumns(*columns_F)
        positions, columns = fetched.upload.finish()
        live_F = fetched.found_U[fetched.upload.positions_F]
        if not live_F.all():
            (live,) = self.ops.put(np.flatnonzero(live_F))
            positions, columns = positions[live], RowColumns(*(column[live] for column in columns))
        return slots_N[positions], columns

    def _expired(self, unique: UniqueKeys, slots_U: Array, new_N: Array) -> Array:
        if not self.cutoffs:
            return new_N[:0]
        old_U = slots_U.copy()
        old_U[new_N] = NO_SLOT  # they hold no row yet
        return self.memory.expired_positions(old_U, unique.features_U, self.cutoffs)

    def _fetch(
        self, positions_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array, prefetched: PrefetchedRows | None
    ) -> FoundRows | None:
        """The rows of these keys in the lower tiers: those that were prefetched, and the others fetched now."""
        if prefetched is None:
            return self.lower_tiers.fetch_unless_empty(features_N, ids_N)
        place_N = prefetched.place_U[positions_N]
        late = np.flatnonzero(place_N < 0)
        if len(late) == 0:
            return None if prefetched.fetched is None else prefetched.fetched.take(place_N)
        rest = self.lower_tiers.fetch_unless_empty(features_N[late], ids_N[late])
        if prefetched.fetched is None and rest is None:
            return None
        found = FoundRows.nothing(features_N, ids_N, self.config.dim, self.config.layout.state_width)
        if prefetched.fetched is not None:
            early = np.flatnonzero(place_N >= 0)
            found.put_found(early, prefetched.fetched.take(place_N[early]))
        if rest is not None:
            found.put_found(late, rest)
        return found

    def _count(self, fetched: FoundRows, num_created: int) -> None:
        num_spill = int(np.count_nonzero(fetched.from_spill_U))
        self.counters["recalled_from_spill"] += num_spill
        self.counters["recalled_from_base"] += int(np.count_nonzero(fetched.found_U)) - num_spill
        self.counters["created"] += num_created
