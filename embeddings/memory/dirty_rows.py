"""What moved since the last cut: the slots touched, the touched rows that left, the keys forgotten."""

# N rows
import numpy as np

from embeddings.memory.evicted_dirty_rows import EvictedDirtyRows
from embeddings.memory.resident import ResidentRows
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import BoolArray, Int64Array, TableDelta, UInt16Array
from kernels.types import NO_SLOT, Array, Spread, run_inline

MAX_PADDING_PART = 4  # the lists of a device are trimmed when their padding may exceed a quarter of the table's slots


class DirtyRows:
    """Told once, at the next cut, the resident copy of a key before its buffered one."""

    def __init__(self, memory: ResidentRows, side: EvictedDirtyRows, horizons: ExpiryCutoffs) -> None:
        self.memory, self.evicted_dirty, self.cutoffs = memory, side, horizons
        self.ops = memory.ops
        self._parts: list[Array] = []  # slots touched since the last cut; a reused slot may stand here twice
        self._num_padding = 0  # entries of the lists that may be padding

    def add(self, slots_N: Array) -> None:
        if len(slots_N):
            self._parts.append(slots_N)
            self._num_padding += self.ops.num_padding(slots_N)
            if self._num_padding > self.memory.store.num_slots // MAX_PADDING_PART:
                self._replace(self.ops.xp.unique(self._slots()))

    def take_delta(self, spread: Spread = run_inline) -> TableDelta:
        """All rows touched, all keys forgotten since the last cut; none that a rule has forgotten.

        `spread`: those who share the work.
        """
        self.memory.eviction_sink.drain_inflight()
        slots_N, features_N, ids_N = self._take(spread)
        resident, _ = self.memory.read(slots_N, features_N, ids_N, spread)

        def is_resident(features_M: UInt16Array, ids_M: Int64Array) -> BoolArray:
            slots_M, told_N = self.ops.fetch(self.memory.find(features_M, ids_M), self.ops.xp.sort(slots_N))
            if len(told_N) == 0:
                return np.zeros(len(slots_M), np.bool_)
            at_M = np.minimum(np.searchsorted(told_N, slots_M), len(told_N) - 1)
            here_M: BoolArray = told_N[at_M] == slots_M
            return here_M

        touched = self.evicted_dirty.drain(resident, is_resident)
        if not self.cutoffs:
            return touched
        return touched.where(self.cutoffs.alive(touched.features, touched.last_seen))

    def _take(self, spread: Spread) -> tuple[Array, Array, Array]:
        """The touched slots, touched no longer, and their keys, by mixed keys: followers search them so."""
        ops, store = self.ops, self.memory.store
        # the order of slots is nearly that of mixed keys: quick to read, quick to sort
        fresh_N = ops.xp.sort(self._slots())
        self._replace()
        parts: dict[int, tuple[Array, Array, Array]] = {}

        def bound(at: int) -> int:
            """Between buckets: a slot that stands here twice is for one thread, and so is the order in a bucket."""
            return at if at in (0, len(fresh_N)) else int(fresh_N.searchsorted(fresh_N[at] // ops.width * ops.width))

        def take(start: int, stop: int) -> None:
            parts[start] = self._clear_dirty(fresh_N[bound(start) : bound(stop)])

        spread(take, len(fresh_N))
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate(column) for column in zip(*(parts[start] for start in sorted(parts)), strict=True)]
        # rows of the overflow area have no place in the order of slots
        return self._in_order(*columns) if fresh_N[-1] >= store.num_slots else (columns[0], columns[1], columns[2])

    def _clear_dirty(self, fresh_M: Array) -> tuple[Array, Array, Array]:
        slots_M = self.ops.clear_dirty(self.memory.store, fresh_M)
        return self._in_order(slots_M, *self.ops.keys_of(self.memory.store, slots_M))

    def _in_order(self, slots_N: Array, features_N: Array, ids_N: Array) -> tuple[Array, Array, Array]:
        order_N = self.ops.xp.argsort(self.ops.mix_keys(features_N, ids_N), kind="stable")
        return slots_N[order_N], features_N[order_N], ids_N[order_N]

    def renumber(self, features_N: Array, ids_N: Array) -> None:
        """After rows got other slots: these keys are the touched ones (see `keys`)."""
        slots_N = self.memory.find(features_N, ids_N)
        self._replace(slots_N[slots_N != NO_SLOT])  # some left because they found no room

    def keys(self) -> tuple[Array, Array]:
        """The touched keys in memory; some may not be touched."""
        return self.ops.keys_of(self.memory.store, self.ops.xp.unique(self._slots()))

    def num_bytes(self) -> int:
        return sum(int(slots_N.nbytes) for slots_N in self._parts) + self.evicted_dirty.num_bytes()

    def slots(self) -> set[int]:
        """Where touched rows may stand."""
        return set(self.ops.fetch(self._slots())[0].tolist())

    def _slots(self) -> Array:
        if not self._parts:
            return self.ops.xp.empty(0, np.int64)
        return self.ops.unpadded(self.ops.xp.concatenate(self._parts))

    def _replace(self, *fresh: Array) -> None:
        self._parts, self._num_padding = list(fresh), 0
