"""The ops on rows that were learned outside `update`."""

# U unique keys, D dimension, S state width
from typing import Any

import numpy as np

from springtide.kernels.cpu.rows.learned_rows import LEARNED_SEED
from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.key_ops import MASK
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.launchers.row_ops import NULL, defines_of, states_of, vectors_of
from springtide.kernels.cuda.store import arrays_of
from springtide.kernels.types import Store
from springtide_client.keys import mix64


class LearnedRowOps(Launcher):
    """The part of kernels/ops.py on rows that were learned elsewhere."""

    def write_learned(self, store: Store, slots_U: Array, values_UD: Array, states_US: Array, seed: int) -> Array:
        slots_U = self._array("slots", slots_U, np.int64, -1)
        p, num, width = arrays_of(store), len(slots_U), store.state_width
        values_UD = self._rows("values", values_UD, num, store.dim)
        states_US = self._array("states", states_US, np.float32, num, width)
        rows = (*p.keys, p.values_CD, p.meta, slots_U, np.int64(num), values_UD)
        mixed_seed = np.uint64(mix64((seed + LEARNED_SEED) & MASK))
        threads, defines = num * vectors_of(store.dim), defines_of(store)
        self._launch("learned_rows", "write_values", threads, *rows, mixed_seed, defines=defines)
        states = (*states_of(store), slots_U, np.int64(num), np.int64(width), states_US)
        self._launch("row_metadata", "scatter_states", num * width, *states)
        return self._touch(store, slots_U, NULL, NULL, count_priority=False)

    def touch(
        self, store: Store, slots_U: Array, occurrences_U: Array, last_seen_U: Array, count_priority: bool
    ) -> Array:
        slots_U = self._array("slots", slots_U, np.int64, -1)
        occurrences_U = self._array("counts", occurrences_U, np.int64, len(slots_U))
        last_seen_U = self._array("last-seen", last_seen_U, np.int64, len(slots_U))
        return self._touch(store, slots_U, occurrences_U, last_seen_U, count_priority=count_priority)

    def _touch(
        self, store: Store, slots_U: Array, occurrences_U: Any, last_seen_U: Any, *, count_priority: bool
    ) -> Array:
        p, num, defines = arrays_of(store), len(slots_U), defines_of(store)
        fresh_U = self._device.empty(num, np.int64)
        batch = (slots_U, np.int64(num), occurrences_U, last_seen_U, np.int32(count_priority), fresh_U)
        self._launch("learned_rows", "touch", num, *p.keys, p.meta, *batch, defines=defines)
        fresh_N = self._list_of(num, np.int64, may_be_late=True)
        num_fresh_1 = self._listed("row_metadata", "fresh", num, (fresh_U,), (fresh_N,))
        return fresh_N if self._late else fresh_N[: self._device.read(num_fresh_1)[0]]
