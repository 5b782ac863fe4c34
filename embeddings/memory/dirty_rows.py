"""The rows that changed since the last version: dirty slots in memory, and evicted dirty rows."""

# N rows, M some of them
import numpy as np

from springtide.embeddings.memory.eviction import EvictedDirtyRows
from springtide.embeddings.memory.resident import ResidentRows
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import BoolArray, Int64Array, TableDelta, UInt16Array
from springtide.kernels.types import NO_SLOT, Array, Spread, run_inline

MAX_PADDING_PART = 4  # lists of slots are trimmed once their padding may exceed a quarter of the table's slots


class DirtyRows:
    """Lists the slots of dirty rows. A key goes into the next version once; its resident copy wins over an evicted."""

    def __init__(self, memory: ResidentRows, evicted_dirty: EvictedDirtyRows, cutoffs: ExpiryCutoffs) -> None:
        self.memory, self.evicted_dirty, self.cutoffs = memory, evicted_dirty, cutoffs
        self.ops = memory.ops
        self._parts: list[Array] = []  # lists of slots; a slot that was reused may occur twice
        self._num_padding = 0  # entries of them that may be padding

    def add(self, slots_N: Array) -> None:
        """Note slots whose rows became dirty; the list may be padded."""
        if len(slots_N):
            self._parts.append(slots_N)
            self._num_padding += self.ops.num_padding(slots_N)
            if self._num_padding > self.memory.store.num_slots // MAX_PADDING_PART:
                self._replace(self.ops.xp.unique(self._slots()))

    def take_delta(self, spread: Spread = run_inline) -> TableDelta:
        """All dirty rows and tombstones since the last call, without expired rows. They are clean afterwards.

        `spread` shares the work among threads.
        """
        self.memory.eviction_sink.drain_inflight()
        slots_N, features_N, ids_N = self._take(spread)
        resident, _ = self.memory.read(slots_N, features_N, ids_N, spread)

        def is_resident(features_M: UInt16Array, ids_M: Int64Array) -> BoolArray:
            slots_M, dirty_N = self.ops.fetch(self.memory.find(features_M, ids_M), self.ops.xp.sort(slots_N))
            if len(dirty_N) == 0:
                return np.zeros(len(slots_M), np.bool_)
            at_M = np.minimum(np.searchsorted(dirty_N, slots_M), len(dirty_N) - 1)
            is_dirty_M: BoolArray = dirty_N[at_M] == slots_M
            return is_dirty_M

        delta = self.evicted_dirty.drain(resident, is_resident)
        if not self.cutoffs:
            return delta
        return delta.where(self.cutoffs.alive(delta.rows.feature, delta.rows.last_seen))

    def renumber(self, features_N: Array, ids_N: Array) -> None:
        """Replace the lists after rows changed their slots; the keys are those that `keys` returned before."""
        slots_N = self.memory.find(features_N, ids_N)
        self._replace(slots_N[slots_N != NO_SLOT])  # some were evicted

    def keys(self) -> tuple[Array, Array]:
        """The keys in the listed slots; some of them may be clean."""
        return self.ops.keys_of(self.memory.store, self.ops.xp.unique(self._slots()))

    def slots(self) -> set[int]:
        """The listed slots."""
        return set(self.ops.fetch(self._slots())[0].tolist())

    def num_bytes(self) -> int:
        return sum(int(slots_N.nbytes) for slots_N in self._parts) + self.evicted_dirty.num_bytes()

    def _take(self, spread: Spread) -> tuple[Array, Array, Array]:
        """Mark the dirty slots as clean. Return them and their keys in the order of key hashes, as followers search."""
        ops, store = self.ops, self.memory.store
        # the order of slots is nearly that of key hashes: quick to read, quick to sort
        listed_N = ops.xp.sort(self._slots())
        self._replace()
        parts: dict[int, tuple[Array, Array, Array]] = {}

        def bound(at: int) -> int:
            """The start of a bucket, so that a slot listed twice and the order within a bucket belong to one thread."""
            return at if at in (0, len(listed_N)) else int(listed_N.searchsorted(listed_N[at] // ops.width * ops.width))

        def take(start: int, stop: int) -> None:
            parts[start] = self._clear_dirty(listed_N[bound(start) : bound(stop)])

        spread(take, len(listed_N))
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate(column) for column in zip(*(parts[start] for start in sorted(parts)), strict=True)]
        # the slots of the overflow area are not in the order of key hashes
        return self._in_order(*columns) if listed_N[-1] >= store.num_slots else (columns[0], columns[1], columns[2])

    def _clear_dirty(self, listed_M: Array) -> tuple[Array, Array, Array]:
        slots_M = self.ops.clear_dirty(self.memory.store, listed_M)
        return self._in_order(slots_M, *self.ops.keys_of(self.memory.store, slots_M))

    def _in_order(self, slots_N: Array, features_N: Array, ids_N: Array) -> tuple[Array, Array, Array]:
        order_N = self.ops.xp.argsort(self.ops.hash_keys(features_N, ids_N), kind="stable")
        return slots_N[order_N], features_N[order_N], ids_N[order_N]

    def _slots(self) -> Array:
        if not self._parts:
            return self.ops.xp.empty(0, np.int64)
        return self.ops.unpadded(self.ops.xp.concatenate(self._parts))

    def _replace(self, *parts: Array) -> None:
        self._parts, self._num_padding = list(parts), 0
