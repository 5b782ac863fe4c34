"""The embedding table: rows for any id, made when first asked for, moved to lower tiers when not asked for long.

Knows no device and no file: devices are verbs (kernels/spec.py), files are a Spill and a RowSource.
"""

# K keys of a batch, U unique keys, N some of them, V victims, D dimension
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from embeddings.autograd import embed
from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.lookup import Lookup
from embeddings.no_spill import NoSpill
from embeddings.optimizer import RowOptimizer
from embeddings.rows import BoolArray, Float32Array, Int64Array, Rows, Touched, UInt16Array
from embeddings.side_buffer import SideBuffer
from embeddings.source import RowSource
from embeddings.spill import ABSENT, MARK, ROW, Spill
from kernels.backend import backend
from kernels.spec import CHANGED, NO_SLOT, TOUCHED, Columns, Placed

KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = 0, 1, 2, 3
Fill = Callable[[Int64Array, Int64Array, UInt16Array, Int64Array], None]  # positions, slots, features, ids
Moved = tuple[Int64Array, int]  # slots first touched, gradients refused
SPLIT_KEYS = 4096  # fewer are not worth a second thread

RESTORE_ROWS = 65536  # a restore goes in steps of so many rows
COUNTERS = (
    "keys",
    "created",
    "recalled_from_spill",
    "recalled_from_base",
    "evicted",
    "spilled",
    "dropped",
    "lost",
    "overflowed",
    "refused_gradients",
    "forgotten",
    "cuts",
)


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
        self.store = self.verbs.allocate(
            capacity.num_slots, capacity.num_overflow, config.dim, self.optimizer.state_width
        )
        self.spill: Spill = spill or NoSpill(config.dim, self.optimizer.state_width)
        self.base, self.tracked = base, tracked
        self.side = SideBuffer(capacity.num_side, config.dim, self.optimizer.state_width)
        self.step = 0  # the table's clock: one tick a lookup
        self._held: dict[int, int] = {}  # scores of lookups not yet released
        self._erasures = 0
        self._fresh: list[Int64Array] = []  # slots touched since the last cut; a reused slot may stand here twice
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._num_rows = 0
        self._pool = ThreadPoolExecutor(config.num_threads) if config.num_threads > 1 else None

    # a batch

    def lookup(self, features_K: UInt16Array, ids_K: Int64Array, event_ms_K: Int64Array) -> Lookup:
        """1. Unique keys. 2. A slot for each. 3. Victims copied out. 4. Rows recalled or created."""
        features_K, ids_K, event_ms_K = _keys(features_K, ids_K, event_ms_K)
        unique = self.verbs.unique(features_K, ids_K, event_ms_K)
        self._counters["keys"] += len(ids_K)
        self.step += 1
        slots_U = self._make_resident(unique.features_U, unique.ids_U, unique.mixed_U, self._fill)
        self._held[self.step] = 1
        return Lookup(
            self,
            score=self.step,
            erasures=self._erasures,
            features_U=unique.features_U,
            ids_U=unique.ids_U,
            slots_U=slots_U,
            inverse_K=unique.inverse_K,
            occurrences_U=unique.occurrences_U,
            last_seen_U=unique.last_seen_U,
        )

    def gather(self, lookup: Lookup) -> Float32Array:
        """The rows of a lookup's keys, (K, D), copied."""
        rows_KD: Float32Array = self.verbs.gather(self.store, self._current_slots(lookup), lookup.inverse_K)
        return rows_KD

    def update(self, lookup: Lookup, grads_KD: Float32Array) -> None:
        """Sums the gradients of each key in the order of the batch, moves its row, and releases the lookup.

        Counts and last-seen move too. A gradient that is not finite leaves the row's value and state as they are.
        """
        if lookup.released:
            raise ValueError("this lookup has been released: a lookup takes one update")
        slots_U = self._current_slots(lookup)
        order_K, offsets_U1 = self.verbs.group(lookup.inverse_K, lookup.occurrences_U)

        def move(start: int, stop: int) -> Moved:
            return self.verbs.update(
                self.store,
                slots_U,
                order_K,
                offsets_U1,
                grads_KD,
                lookup.last_seen_U,
                self.lr,
                self.optimizer.eps,
                start,
                stop,
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
        """Lets go of a lookup's rows; those in the overflow area leave memory as evictions do."""
        self._held.pop(score, None)
        slots_V = self.verbs.overflow(self.store, min(self._held, default=self.step + 1))
        if len(slots_V):
            features_V, ids_V = self.verbs.keys_of(self.store, slots_V)
            self._evict(slots_V, features_V, ids_V)
            self.verbs.erase(self.store, slots_V)

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, npt.NDArray[np.uint8]]:
        """The rows, NaN where there is none, and their status (0 known, 1 unknown, 3 forgotten); creates nothing."""
        features_K, ids_K, times_K = _keys(features_K, ids_K, np.zeros(len(ids_K), np.int64))
        unique = self.verbs.unique(features_K, ids_K, times_K)
        slots_U = self.verbs.find(self.store, unique.features_U, unique.ids_U, unique.mixed_U)
        values_UD = self.verbs.gather(self.store, slots_U, np.arange(len(slots_U)))
        status_U = np.zeros(len(slots_U), np.uint8)
        missing = np.flatnonzero(slots_U == NO_SLOT)
        if len(missing):
            below = self._recall(unique.features_U[missing], unique.ids_U[missing])
            values_UD[missing[below.found_N]] = below.rows.values[below.found_N]
            status_U[missing] = np.where(below.found_N, KNOWN, np.where(below.marked_N, FORGOTTEN, UNKNOWN))
        return values_UD[unique.inverse_K], status_U[unique.inverse_K]

    def embed(self, lookup: Lookup) -> torch.Tensor:
        """The rows of a lookup's keys, (K, D); where gradients are on, its backward is `update`."""
        return embed(self, lookup)

    # versions

    def needs_cut(self, num_keys: int) -> bool:
        """Whether a batch of so many keys may have to wait for a cut: a batch begins only when this is false."""
        return self.tracked and not self.side.can_take(num_keys)

    def cut(self) -> Touched:
        """All rows touched, all keys forgotten since the last cut; the resident copy goes before the buffered one."""
        fresh_N = np.concatenate(self._fresh) if self._fresh else np.empty(0, np.int64)
        self._fresh.clear()
        slots_N = self.verbs.clear_touched(self.store, fresh_N)
        self._counters["cuts"] += 1
        return self.side.drain(self._read(slots_N, *self.verbs.keys_of(self.store, slots_N))[0])

    def restore(self, touched: Touched) -> None:
        """Takes rows and forgettings of a version as this table's own: changed, but not to be told again."""
        self._forget(touched.forgotten_features, touched.forgotten_ids)
        for start in range(0, len(touched), RESTORE_ROWS):
            part = slice(start, start + RESTORE_ROWS)
            features_N, ids_N, last_seen_N = _keys(touched.features[part], touched.ids[part], touched.last_seen[part])
            columns = Columns(
                np.ascontiguousarray(touched.values[part], np.float32),
                np.ascontiguousarray(touched.states[part], np.float32),
                np.ascontiguousarray(touched.counts[part], np.int64),
                last_seen_N,
                np.full(len(ids_N), CHANGED, np.int64),
            )
            self.step += 1
            mixed_N = self.verbs.mix_keys(features_N, ids_N)
            slots_N = self._make_resident(features_N, ids_N, mixed_N, lambda *_: None)
            self.verbs.scatter(self.store, slots_N, columns)
            self.release(self.step)

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """These keys have no row any more, in any tier; the next cut tells it."""
        features_N, ids_N, _ = _keys(features_N, ids_N, ids_N)
        self._forget(features_N, ids_N)
        if self.tracked:
            self.side.add_marks(features_N, ids_N)
        self._counters["forgotten"] += len(ids_N)

    def open_generation(self) -> int:
        """Right after the cut at which a base begins: what is evicted from now on is not in it. To `map_base`."""
        return self.spill.open_generation()

    def map_base(self, base: RowSource, generation: int) -> None:
        """Reads from this base from now on; the spill's generations up to this one are covered by it."""
        self.base = base
        self.spill.destroy_generations(generation)

    # what others want to know

    def set_lr(self, lr: float) -> None:
        self.lr = RowOptimizer(lr=lr).lr

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def rows_by_tier(self) -> dict[str, int]:
        return {"device": self._num_rows, "disk": self.spill.num_rows()}

    def bytes_by_tier(self) -> dict[str, int]:
        touched = sum(fresh_N.nbytes for fresh_N in self._fresh)
        device = self.store.num_bytes + self.side.num_bytes() + touched
        return {"device": device, "disk": self.spill.num_bytes()}

    def check_integrity(self) -> None:
        """AssertionError where the index and the rows contradict each other."""
        num_rows = self.store.num_slots + self.store.num_overflow
        slots_N = self.verbs.scan(self.store, 0, num_rows, -1, np.iinfo(np.int64).max)
        features_N, ids_N = self.verbs.keys_of(self.store, slots_N)
        found_N = self.verbs.find(self.store, features_N, ids_N, self.verbs.mix_keys(features_N, ids_N))
        assert np.array_equal(found_N, slots_N), "a key is not found where it stands"
        assert len(slots_N) == self._num_rows, f"{len(slots_N)} keys stand, {self._num_rows} are counted"
        columns = self.verbs.read(self.store, slots_N)
        touched = {int(slot) for fresh_N in self._fresh for slot in fresh_N}
        for slot, flags in zip(slots_N.tolist(), columns.flags_N.tolist(), strict=True):
            assert not (self.tracked and flags & TOUCHED) or slot in touched, f"slot {slot} is touched, no one knows"

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self.spill.close()

    # the parts of a lookup

    def _make_resident(
        self, features_U: UInt16Array, ids_U: Int64Array, mixed_U: npt.NDArray[np.uint64], fill: Fill
    ) -> Int64Array:
        """A slot for every key; `fill` gives the new ones their rows."""
        placed = self._place(features_U, ids_U, mixed_U)
        slots_U = placed.slots_U
        new = [placed.new_N]
        while len(homeless := np.flatnonzero(slots_U == NO_SLOT)):
            # sized for all keys of a batch in one bucket, beside those of lookups that are still held
            self.store = self.verbs.grow_overflow(self.store, 2 * self.store.num_overflow + len(homeless))
            placed = self._place(features_U[homeless], ids_U[homeless], mixed_U[homeless])
            slots_U[homeless] = placed.slots_U
            new.append(homeless[placed.new_N])
        new_N = np.concatenate(new) if len(new) > 1 else new[0]
        if len(new_N):
            slots_N = slots_U[new_N]
            self._counters["overflowed"] += int(np.count_nonzero(slots_N >= self.store.num_slots))
            try:
                fill(new_N, slots_N, features_U[new_N], ids_U[new_N])
            except BaseException:
                self._erase(slots_N)  # they hold no row
                raise
        return slots_U

    def _place(self, features_U: UInt16Array, ids_U: Int64Array, mixed_U: npt.NDArray[np.uint64]) -> Placed:
        placed = self.verbs.find_or_insert(self.store, features_U, ids_U, mixed_U, self.step, self._protect_from())
        self._num_rows += len(placed.new_N)
        if len(placed.victim_slots_V):
            # the victims are copied out before anything is written into their rows
            self._evict(placed.victim_slots_V, placed.victim_features_V, placed.victim_ids_V)
        return placed

    def _fill(self, new_N: Int64Array, slots_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Rows from below where there are any, else first values."""
        recalled = self._recall(features_N, ids_N)
        found_N = recalled.found_N
        if found_N.any():
            rows = recalled.rows.take(found_N)
            flags = np.zeros(len(rows), np.int64)  # what lies below gives this very value
            columns = Columns(rows.values, rows.states, rows.counts, rows.last_seen, flags)
            self.verbs.scatter(self.store, slots_N[found_N], columns)
            slots_N, features_N, ids_N = slots_N[~found_N], features_N[~found_N], ids_N[~found_N]
        if len(slots_N):
            self.verbs.create(self.store, slots_N, features_N, ids_N, self.seed, self.config.init_scale)
        self._counters["created"] += len(slots_N)
        self._counters["recalled_from_spill"] += recalled.num_from_spill
        self._counters["recalled_from_base"] += int(np.count_nonzero(found_N)) - recalled.num_from_spill

    def _recall(self, features_U: UInt16Array, ids_U: Int64Array) -> "Recalled":
        """What the tiers below know: the spill first, a mark in it hides the base."""
        spilled = self.spill.find(features_U, ids_U)
        rows, found_U, marked_U = spilled.rows, spilled.kinds == ROW, spilled.kinds == MARK
        num_from_spill = int(np.count_nonzero(found_U))
        absent = np.flatnonzero(spilled.kinds == ABSENT)
        if self.base is not None and len(absent):
            below = self.base.find(features_U[absent], ids_U[absent])
            here = absent[below.found]
            rows.values[here], rows.states[here] = below.values[below.found], below.states[below.found]
            rows.counts[here], rows.last_seen[here] = below.counts[below.found], below.last_seen[below.found]
            found_U[here] = True
        return Recalled(rows, found_U, marked_U, num_from_spill)

    def _evict(self, slots_V: Int64Array, features_V: UInt16Array, ids_V: Int64Array) -> None:
        """Copies rows that leave memory to where they are still needed."""
        rows, flags_V = self._read(slots_V, features_V, ids_V)
        self._num_rows -= len(rows)
        self._counters["evicted"] += len(rows)
        changed_V = (flags_V & CHANGED) != 0
        touched_V = (flags_V & TOUCHED) != 0
        changed = rows if changed_V.all() else rows.take(changed_V)
        if len(changed):
            self.spill.write(changed)
        self._counters["dropped"] += len(rows) - len(changed)
        self._counters["spilled" if self.spill.keeps_rows else "lost"] += len(changed)
        if self.tracked and self.spill.keeps_rows:
            self.side.add(rows if touched_V.all() else rows.take(touched_V))
        elif self.tracked:
            self.side.add_marks(changed.features, changed.ids)

    def _forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N) == 0:
            return
        slots_N = self.verbs.find(self.store, features_N, ids_N, self.verbs.mix_keys(features_N, ids_N))
        self._erase(np.unique(slots_N[slots_N != NO_SLOT]))
        self.spill.mark(features_N, ids_N)

    def _erase(self, slots_N: Int64Array) -> None:
        self.verbs.erase(self.store, slots_N)
        self._num_rows -= len(slots_N)
        self._erasures += 1

    def _read(
        self, slots_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array
    ) -> tuple[Rows, npt.NDArray[np.int64]]:
        columns = self.verbs.read(self.store, slots_N)
        return Rows(features_N, ids_N, *columns[:4]), columns.flags_N

    def _current_slots(self, lookup: Lookup) -> Int64Array:
        """The slots of a held lookup; NO_SLOT for keys that were forgotten since."""
        if lookup.released:
            raise ValueError("this lookup has been released: look the keys up again")
        if lookup.erasures == self._erasures:
            return lookup.slots_U
        mixed_U = self.verbs.mix_keys(lookup.features_U, lookup.ids_U)
        slots_U: Int64Array = self.verbs.find(self.store, lookup.features_U, lookup.ids_U, mixed_U)
        slots_U[slots_U != lookup.slots_U] = NO_SLOT
        return slots_U

    def _protect_from(self) -> int:
        """Rows with this score or a newer one stay: those of the lookups held, and of the one in the making."""
        return min(self._held, default=self.step)


@dataclass(frozen=True)
class Recalled:
    """Rows from below, where there were any."""

    rows: Rows
    found_N: BoolArray
    marked_N: BoolArray
    num_from_spill: int


def _keys(
    features_K: UInt16Array, ids_K: Int64Array, times_K: Int64Array
) -> tuple[UInt16Array, Int64Array, Int64Array]:
    """Contiguous arrays of the right types; ValueError where their lengths differ."""
    if not features_K.shape == ids_K.shape == times_K.shape or ids_K.ndim != 1:
        raise ValueError(
            f"features {features_K.shape}, ids {ids_K.shape} and times {times_K.shape} must be of one length"
        )
    return (
        np.ascontiguousarray(features_K, np.uint16),
        np.ascontiguousarray(ids_K, np.int64),
        np.ascontiguousarray(times_K, np.int64),
    )
