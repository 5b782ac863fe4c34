"""The embedding table: rows for any id, made when first asked for, moved to lower tiers when not asked for long.

Knows no device and no file: devices are verbs (kernels/spec.py), files are a Spill and a RowSource.
"""

# K keys of a batch, U unique keys, N some of them, D dimension
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from embeddings.autograd import embed
from embeddings.below import recall
from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.lookup import Lookup
from embeddings.memory import Memory
from embeddings.no_spill import NoSpill
from embeddings.optimizer import RowOptimizer
from embeddings.rows import BoolArray, Float32Array, Int64Array, Rows, Touched, UInt16Array
from embeddings.side_buffer import SideBuffer
from embeddings.source import RowSource
from embeddings.spill import Spill
from kernels.backend import backend
from kernels.spec import CHANGED, NO_SLOT, STORED, TOUCHED

KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = 0, 1, 2, 3
RESTORE_ROWS = 65536  # a restore goes in steps of so many rows
SPLIT_KEYS = 4096  # fewer are not worth a second thread

Moved = tuple[Int64Array, int]  # slots first touched, gradients refused


class EmbeddingTable:
    """Rows by (feature, id). Used by one thread.

    With `tracked` every row that moves is told at the next cut; without it nobody cuts. Without a spill an evicted row
    is forgotten.
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
    ) -> None:
        self.config, self.seed, self.dim = config, seed, config.dim
        self.optimizer = RowOptimizer.of(config.optimizer)
        self.lr = self.optimizer.lr
        self.verbs = backend(device)
        capacity = capacity or Capacity.of_bytes(config, self.verbs, tracked=tracked)
        state_width = self.optimizer.state_width(config.dim)
        self.memory = Memory(self.verbs, capacity, config.dim, state_width, self._leaving)
        self.spill: Spill = spill or NoSpill(config.dim, state_width)
        self.base, self.tracked = base, tracked
        self.side = SideBuffer(capacity.num_side, config.dim, state_width)
        self._fresh: list[Int64Array] = []  # slots touched since the last cut; a reused slot may stand here twice
        self._counters = dict.fromkeys(
            ("keys", "created", "recalled_from_spill", "recalled_from_base", "evicted", "spilled", "dropped", "lost"), 0
        ) | dict.fromkeys(("refused_gradients", "forgotten", "cuts"), 0)
        self._pool = ThreadPoolExecutor(config.num_threads) if config.num_threads > 1 else None

    # a batch

    def lookup(self, features_K: UInt16Array, ids_K: Int64Array, event_ms_K: Int64Array) -> Lookup:
        """1. Unique keys. 2. A slot for each. 3. Victims copied out. 4. Rows recalled or created."""
        features_K, ids_K, event_ms_K = _keys(features_K, ids_K, event_ms_K)
        unique = self.verbs.unique(features_K, ids_K, event_ms_K)
        self._counters["keys"] += len(ids_K)
        score = self.memory.hold()
        try:
            slots_U, new_N = self.memory.place(unique.features_U, unique.ids_U, unique.mixed_U)
            if len(new_N):
                self._fill(slots_U[new_N], unique.features_U[new_N], unique.ids_U[new_N])
        except BaseException:
            self.memory.release(score)
            raise
        return Lookup(
            self,
            score=score,
            erasures=self.memory.erasures,
            features_U=unique.features_U,
            ids_U=unique.ids_U,
            slots_U=slots_U,
            inverse_K=unique.inverse_K,
            occurrences_U=unique.occurrences_U,
            last_seen_U=unique.last_seen_U,
        )

    def gather(self, lookup: Lookup) -> Float32Array:
        """The rows of a lookup's keys, (K, D), copied; NaN where the key was forgotten since."""
        rows_KD: Float32Array = self.verbs.gather(self.memory.store, self._slots(lookup), lookup.inverse_K)
        return rows_KD

    def embed(self, lookup: Lookup) -> torch.Tensor:
        """The rows of a lookup's keys, (K, D); where gradients are on, its backward is `update`."""
        return embed(self, lookup)

    def update(self, lookup: Lookup, grads_KD: Float32Array) -> None:
        """Sums the gradients of each key in the order of the batch, moves its row, and releases the lookup.

        Counts and last-seen move too. A gradient that is not finite leaves the row's value and state as they are.
        """
        slots_U = self._slots(lookup)
        order_K, offsets_U1 = self.verbs.group(lookup.inverse_K, lookup.occurrences_U)
        store, step = self.memory.store, self.optimizer.step(self.lr, self.seed)

        def move(start: int, stop: int) -> Moved:
            return self.verbs.update(
                store, slots_U, order_K, offsets_U1, grads_KD, lookup.last_seen_U, step, False, start, stop
            )

        num_parts = self.config.num_threads if len(slots_U) >= SPLIT_KEYS else 1
        bounds = [len(slots_U) * part // num_parts for part in range(num_parts + 1)]
        moving = self._pool.map if self._pool is not None and num_parts > 1 else map
        for fresh_N, num_refused in moving(move, bounds[:-1], bounds[1:]):
            self._counters["refused_gradients"] += num_refused
            if self.tracked and len(fresh_N):
                self._fresh.append(fresh_N)
        lookup.release()

    def release(self, score: int) -> None:
        """For lookups: their rows may leave from now on."""
        self.memory.release(score)

    def abandon(self, score: int) -> None:
        """For lookups nobody holds any more: their rows may leave with the next call."""
        self.memory.abandon(score)

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, npt.NDArray[np.uint8]]:
        """The rows, NaN where there is none, and their status (0 known, 1 unknown, 3 forgotten); creates nothing."""
        features_K, ids_K, times_K = _keys(features_K, ids_K, ids_K)
        unique = self.verbs.unique(features_K, ids_K, times_K)
        slots_U = self.verbs.find(self.memory.store, unique.features_U, unique.ids_U, unique.mixed_U)
        missing = np.flatnonzero(slots_U == NO_SLOT)
        if len(missing) == 0:
            rows_KD = self.verbs.gather(self.memory.store, slots_U, unique.inverse_K)
            return rows_KD, np.zeros(len(ids_K), np.uint8)
        values_UD = self.verbs.gather(self.memory.store, slots_U, np.arange(len(slots_U)))
        below = recall(self.spill, self.base, unique.features_U[missing], unique.ids_U[missing])
        values_UD[missing[below.found_U]] = below.rows.values[below.found_U]
        status_U = np.zeros(len(slots_U), np.uint8)
        status_U[missing] = np.where(below.found_U, KNOWN, np.where(below.forgotten_U, FORGOTTEN, UNKNOWN))
        return values_UD[unique.inverse_K], status_U[unique.inverse_K]

    # versions

    def needs_cut(self, num_keys: int) -> bool:
        """Whether a batch of so many keys may have to wait for a cut: a batch begins only when this is false."""
        return self.tracked and not self.side.can_take(num_keys)

    def cut(self) -> Touched:
        """All rows touched, all keys forgotten since the last cut; the resident copy goes before the buffered one."""
        # in the order of slots, which is nearly that of mixed keys: quicker to read here, and to merge elsewhere
        fresh_N = np.sort(np.concatenate(self._fresh)) if self._fresh else np.empty(0, np.int64)
        self._fresh.clear()
        slots_N = self.verbs.clear_touched(self.memory.store, fresh_N)
        self._counters["cuts"] += 1
        resident, _ = self.memory.read(slots_N, *self.verbs.keys_of(self.memory.store, slots_N))

        def is_resident(features_M: UInt16Array, ids_M: Int64Array) -> BoolArray:
            slots_M = self.memory.find(features_M, ids_M)
            if len(slots_N) == 0:
                return np.zeros(len(slots_M), np.bool_)
            at_M = np.minimum(np.searchsorted(slots_N, slots_M), len(slots_N) - 1)
            here_M: BoolArray = slots_N[at_M] == slots_M
            return here_M

        return self.side.drain(resident, is_resident)

    def restore(self, touched: Touched) -> None:
        """Takes rows and forgettings of a version as this table's own: changed, but not to be told again."""
        self._forget(*_keys(touched.forgotten_features, touched.forgotten_ids, touched.forgotten_ids)[:2])
        for start in range(0, len(touched), RESTORE_ROWS):
            part = slice(start, start + RESTORE_ROWS)
            features_N, ids_N, last_seen_N = _keys(touched.features[part], touched.ids[part], touched.last_seen[part])
            values_ND = np.ascontiguousarray(touched.values[part], np.float32)
            states_NS = np.ascontiguousarray(touched.states[part], np.float32)
            counts_N = np.ascontiguousarray(touched.counts[part], np.int64)
            score = self.memory.hold()
            slots_N, _ = self.memory.place(features_N, ids_N, self.verbs.mix_keys(features_N, ids_N))
            rows = Rows(features_N, ids_N, values_ND, states_NS, counts_N, last_seen_N)
            self.memory.write(slots_N, rows, np.full(len(rows), CHANGED, np.int64))
            self.memory.release(score)

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """These keys have no row any more, in any tier; the next cut tells it."""
        features_N, ids_N, _ = _keys(features_N, ids_N, ids_N)
        self._forget(features_N, ids_N)
        if self.tracked:
            self.side.add_marks(features_N, ids_N)
        self._counters["forgotten"] += len(ids_N)

    def export(self) -> Rows:
        """Every row in memory and in the spill, each key once; not those of the base."""
        slots_N = self.memory.occupied()
        resident, _ = self.memory.read(slots_N, *self.verbs.keys_of(self.memory.store, slots_N))
        spilled = self.spill.read_all()
        only_there = self.memory.find(spilled.features, spilled.ids) == NO_SLOT
        return Rows.concatenate([resident, spilled.take(only_there)])

    def open_generation(self) -> int:
        """Right after the cut that a base begins with: the number `map_base` wants once that base is there."""
        return self.spill.open_generation()

    def map_base(self, base: RowSource, generation: int) -> None:
        """Reads from this base from now on; the spill's generations up to this one are covered by it."""
        self.base = base
        self.spill.destroy_generations(generation)

    # what others want to know

    def set_lr(self, lr: float) -> None:
        self.lr = self.optimizer.with_lr(lr).lr

    def counters(self) -> dict[str, int]:
        return self._counters | {"overflowed": self.memory.num_overflowed}

    def rows_by_tier(self) -> dict[str, int]:
        return {"device": self.memory.num_rows, "disk": self.spill.num_rows()}

    def bytes_by_tier(self) -> dict[str, int]:
        fresh = sum(fresh_N.nbytes for fresh_N in self._fresh)
        return {
            "device": self.memory.store.num_bytes + self.side.num_bytes() + fresh,
            "disk": self.spill.num_bytes(),
        }

    def check_integrity(self) -> None:
        """AssertionError where the parts contradict each other."""
        fresh = {int(slot) for fresh_N in self._fresh for slot in fresh_N}
        self.memory.check(fresh if self.tracked else None)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self.spill.close()

    # between tiers

    def _fill(self, slots_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Rows from below where there are any, else first values."""
        try:
            below = recall(self.spill, self.base, features_N, ids_N)
        except BaseException:
            self.memory.erase(slots_N)  # they hold no row
            raise
        found_N = below.found_U
        num_found = int(np.count_nonzero(found_N))
        if num_found:
            # not CHANGED: it is what lies below
            flags_N = np.where(below.from_spill_U[found_N], STORED, 0)
            self.memory.write(slots_N[found_N], below.rows.take(found_N), flags_N)
            slots_N, features_N, ids_N = slots_N[~found_N], features_N[~found_N], ids_N[~found_N]
        if len(slots_N):
            self.verbs.create(self.memory.store, slots_N, features_N, ids_N, self.seed, self.config.init_scale)
        self._counters["created"] += len(slots_N)
        num_from_spill = int(np.count_nonzero(below.from_spill_U))
        self._counters["recalled_from_spill"] += num_from_spill
        self._counters["recalled_from_base"] += num_found - num_from_spill

    def _leaving(self, rows: Rows, flags_N: Int64Array) -> None:
        """Copies of rows that leave memory go where they are still needed."""
        changed_N, touched_N = (flags_N & CHANGED) != 0, (flags_N & TOUCHED) != 0
        changed = rows if changed_N.all() else rows.take(changed_N)
        if len(changed):
            self.spill.write(changed, int(np.count_nonzero(changed_N & ((flags_N & STORED) == 0))))
        self._counters["evicted"] += len(rows)
        self._counters["dropped"] += len(rows) - len(changed)
        self._counters["spilled" if self.spill.keeps_rows else "lost"] += len(changed)
        if self.tracked and self.spill.keeps_rows:
            self.side.add(rows if touched_N.all() else rows.take(touched_N))
        elif self.tracked:
            self.side.add_marks(changed.features, changed.ids)

    def _forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            slots_N = self.memory.find(features_N, ids_N)
            self.memory.erase(np.unique(slots_N[slots_N != NO_SLOT]))
            self.spill.mark(features_N, ids_N)

    def _slots(self, lookup: Lookup) -> Int64Array:
        """The slots of a held lookup; NO_SLOT for keys that were forgotten since."""
        if lookup.released:
            raise ValueError("this lookup has been released (it takes one update): look the keys up again")
        if lookup.erasures == self.memory.erasures:
            return lookup.slots_U
        slots_U = self.memory.find(lookup.features_U, lookup.ids_U)
        slots_U[slots_U != lookup.slots_U] = NO_SLOT
        return slots_U


def _keys(
    features_K: UInt16Array, ids_K: Int64Array, times_K: Int64Array
) -> tuple[UInt16Array, Int64Array, Int64Array]:
    """Contiguous arrays of the right types; ValueError where their lengths differ."""
    if not features_K.shape == ids_K.shape == times_K.shape or ids_K.ndim != 1:
        raise ValueError(f"features {features_K.shape}, ids {ids_K.shape}, times {times_K.shape}: one length for all")
    return (
        np.ascontiguousarray(features_K, np.uint16),
        np.ascontiguousarray(ids_K, np.int64),
        np.ascontiguousarray(times_K, np.int64),
    )
