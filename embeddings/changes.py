"""What moved since the last cut: the slots touched, the touched rows that left, the keys forgotten."""

# N rows
import numpy as np
from springtide_client.keys import mix_keys

from embeddings.horizons import Horizons
from embeddings.memory import Memory
from embeddings.rows import BoolArray, Int64Array, Touched, UInt16Array
from embeddings.side_buffer import SideBuffer


class Changes:
    """Told once, at the next cut, the resident copy of a key before its buffered one."""

    def __init__(self, memory: Memory, side: SideBuffer, horizons: Horizons) -> None:
        self.memory, self.side, self.horizons = memory, side, horizons
        self._fresh: list[Int64Array] = []  # slots touched since the last cut; a reused slot may stand here twice

    def touched(self, slots_N: Int64Array) -> None:
        if len(slots_N):
            self._fresh.append(slots_N)

    def cut(self) -> Touched:
        """All rows touched, all keys forgotten since the last cut; none that a rule has forgotten."""
        # in the order of slots, which is nearly that of mixed keys: quicker to read here, and to merge elsewhere
        fresh_N = np.sort(self._slots())
        self._fresh.clear()
        verbs, store = self.memory.verbs, self.memory.store
        slots_N = verbs.clear_touched(store, fresh_N)
        resident, _ = self.memory.read(slots_N, *verbs.keys_of(store, slots_N))

        def is_resident(features_M: UInt16Array, ids_M: Int64Array) -> BoolArray:
            slots_M = self.memory.find(features_M, ids_M)
            if len(slots_N) == 0:
                return np.zeros(len(slots_M), np.bool_)
            at_M = np.minimum(np.searchsorted(slots_N, slots_M), len(slots_N) - 1)
            here_M: BoolArray = slots_N[at_M] == slots_M
            return here_M

        touched = self.side.drain(resident, is_resident)
        if not self.horizons:
            return touched
        return touched.where(self.horizons.alive(touched.features, touched.last_seen))

    def renumber(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """After rows got other slots: these keys are the touched ones (see `keys`)."""
        self._fresh = [self.memory.verbs.find(self.memory.store, features_N, ids_N, mix_keys(features_N, ids_N))]

    def keys(self) -> tuple[UInt16Array, Int64Array]:
        """The touched keys in memory; some may not be touched."""
        features_N, ids_N = self.memory.verbs.keys_of(self.memory.store, np.unique(self._slots()))
        return features_N, ids_N

    def num_bytes(self) -> int:
        return sum(slots_N.nbytes for slots_N in self._fresh) + self.side.num_bytes()

    def slots(self) -> set[int]:
        """Where touched rows may stand."""
        return set(self._slots().tolist())

    def _slots(self) -> Int64Array:
        return np.concatenate(self._fresh) if self._fresh else np.empty(0, np.int64)
