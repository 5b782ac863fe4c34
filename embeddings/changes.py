"""What moved since the last cut: the slots touched, the touched rows that left, the keys forgotten."""

# N rows
import numpy as np

from embeddings.horizons import Horizons
from embeddings.memory import Memory
from embeddings.rows import BoolArray, Int64Array, Touched, UInt16Array
from embeddings.side_buffer import SideBuffer
from kernels.spec import NO_SLOT, Array

LATE_PART = 4  # what the device has not yet cut to its length may be a quarter as long as the table


class Changes:
    """Told once, at the next cut, the resident copy of a key before its buffered one."""

    def __init__(self, memory: Memory, side: SideBuffer, horizons: Horizons) -> None:
        self.memory, self.side, self.horizons = memory, side, horizons
        self.verbs = memory.verbs
        self._fresh: list[Array] = []  # slots touched since the last cut; a reused slot may stand here twice
        self._num_late = 0  # how long they are with NO_SLOT among them, where it is the device that knows

    def touched(self, slots_N: Array) -> None:
        if len(slots_N):
            self._fresh.append(slots_N)
            if not self.verbs.on_host:
                self._num_late += len(slots_N)
                if self._num_late > self.memory.store.num_slots // LATE_PART:
                    self._renew(self.verbs.xp.unique(self._slots()))

    def cut(self) -> Touched:
        """All rows touched, all keys forgotten since the last cut; none that a rule has forgotten."""
        self.memory.departures.land()
        # the order of slots is nearly that of mixed keys, in which followers search rows: quick to read, quick to sort
        verbs, store = self.verbs, self.memory.store
        fresh_N = verbs.xp.sort(self._slots())
        self._renew()
        slots_N = verbs.clear_touched(store, fresh_N)
        features_N, ids_N = verbs.keys_of(store, slots_N)
        order_N = verbs.xp.argsort(verbs.mix_keys(features_N, ids_N), kind="stable")
        resident, _ = self.memory.read(slots_N[order_N], features_N[order_N], ids_N[order_N])

        def is_resident(features_M: UInt16Array, ids_M: Int64Array) -> BoolArray:
            slots_M, told_N = verbs.fetch(self.memory.find(features_M, ids_M), slots_N)
            if len(told_N) == 0:
                return np.zeros(len(slots_M), np.bool_)
            at_M = np.minimum(np.searchsorted(told_N, slots_M), len(told_N) - 1)
            here_M: BoolArray = told_N[at_M] == slots_M
            return here_M

        touched = self.side.drain(resident, is_resident)
        if not self.horizons:
            return touched
        return touched.where(self.horizons.alive(touched.features, touched.last_seen))

    def renumber(self, features_N: Array, ids_N: Array) -> None:
        """After rows got other slots: these keys are the touched ones (see `keys`)."""
        slots_N = self.memory.find(features_N, ids_N)
        self._renew(slots_N[slots_N != NO_SLOT])  # some left because they found no room

    def keys(self) -> tuple[Array, Array]:
        """The touched keys in memory; some may not be touched."""
        return self.verbs.keys_of(self.memory.store, self.verbs.xp.unique(self._slots()))

    def num_bytes(self) -> int:
        return sum(int(slots_N.nbytes) for slots_N in self._fresh) + self.side.num_bytes()

    def slots(self) -> set[int]:
        """Where touched rows may stand."""
        return set(self.verbs.fetch(self._slots())[0].tolist())

    def _slots(self) -> Array:
        slots_N = self.verbs.xp.concatenate(self._fresh) if self._fresh else self.verbs.xp.empty(0, np.int64)
        return slots_N if self.verbs.on_host else slots_N[slots_N != NO_SLOT]

    def _renew(self, *fresh: Array) -> None:
        self._fresh, self._num_late = list(fresh), 0
