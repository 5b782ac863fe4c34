"""The ops that move rows in and out of a store."""

# K keys of a batch, U unique keys, B bags, N some rows, D dimension, S optimizer state width
# U unique keys, D dimension, S state width
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import first_value_constants, mixed_seed_of
from springtide.kernels.cpu.rows.learned_rows import LEARNED_SEED
from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.sources import Defines
from springtide.kernels.cuda.store import arrays_of, recorded_state
from springtide.kernels.types import RowColumns, Spread, Store, run_inline

MODES = ("sum", "mean", "max")  # numbered as in rows.cu
NULL = np.uint64(0)  # a pointer to nothing


def defines_of(store: Store) -> Defines:
    """The definitions that the kernels of rows are compiled with."""
    return ("DIM", store.dim), ("HALF", int(store.layout.dtype != "float32"))


def states_of(store: Store) -> tuple[Any, ...]:
    """Where the kernels find a row's state."""
    p = arrays_of(store)
    return p.meta, p.states_CS, np.int64(p.states_CS.shape[1]), np.int64(recorded_state(store.layout))


def vectors_of(dim: int) -> int:
    """Threads a row takes in a copy: four numbers each."""
    return -(-dim // 4)


class RowOps(Launcher):
    """The rows' part of kernels/ops.py."""

    def gather(self, store: Store, slots_U: Array, inverse_K: Array, out: Array | None = None) -> Array:
        slots_U = self._array("slots", slots_U, np.int64, -1)
        inverse_K = self._array("inverse", inverse_K, np.int64, -1)
        num = len(inverse_K)
        out_KD = self._device.empty((num, store.dim), np.float32) if out is None else out
        self._rows("out", out_KD, num, store.dim)
        self._gather(store, slots_U, inverse_K, num, out_KD)
        return out_KD

    def gather_pooled(
        self,
        store: Store,
        slots_U: Array,
        inverse_K: Array,
        offsets_B1: Array,
        mode: str,
        scales_K: Array | None = None,
    ) -> tuple[Array, Array | None]:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        slots_U = self._array("slots", slots_U, np.int64, -1)
        inverse_K = self._array("inverse", inverse_K, np.int64, -1)
        offsets_B1 = self._array("offsets", offsets_B1, np.int64, -1)
        if not len(offsets_B1):
            raise ValueError(f"offsets must go from 0 to the number of keys, {len(inverse_K)}: there are none")
        if scales_K is not None and mode != "sum":
            raise ValueError(f'mode must be "sum" where keys have factors, not {mode!r}')
        scales = NULL if scales_K is None else self._array("scales", scales_K, np.float32, len(inverse_K))
        num, is_max = len(offsets_B1) - 1, mode == "max"
        out_BD = self._device.empty((num, store.dim), np.float32)
        winners_BD = self._device.empty((num, store.dim), np.int64) if is_max else None
        batch = (slots_U, inverse_K, offsets_B1, np.int64(num), np.int32(MODES.index(mode)))
        winners = NULL if winners_BD is None else winners_BD
        arguments = (arrays_of(store).values_CD, *batch, scales, out_BD, winners)
        self._launch("rows", "pool", num * vectors_of(store.dim), *arguments, defines=defines_of(store))
        return out_BD, winners_BD

    def counts_of(self, store: Store, slots_N: Array) -> Array:
        return self._records(store, self._array("slots", slots_N, np.int64, -1))[0]

    def read(self, store: Store, slots_N: Array, spread: Spread = run_inline) -> RowColumns:
        del spread  # the device shares work by itself
        slots_N = self._array("slots", slots_N, np.int64, -1)
        device, num = self._device, len(slots_N)
        values_ND = device.empty((num, store.dim), np.float32)
        self._gather(store, slots_N, NULL, num, values_ND)
        width = store.state_width
        states_NS = device.empty((num, width), np.float32)
        arguments = (*states_of(store), slots_N, np.int64(num), np.int64(width), states_NS)
        self._launch("row_metadata", "read_states", num * width, *arguments)
        return RowColumns(values_ND, states_NS, *self._records(store, slots_N))

    def _records(self, store: Store, slots_N: Array) -> tuple[Array, Array, Array]:
        """Counts, last-seen and flags."""
        num = len(slots_N)
        counts_N, last_seen_N, flags_N = (self._device.empty(num, np.int64) for _ in range(3))
        known = counts_N, last_seen_N, flags_N
        self._launch("row_metadata", "read_records", num, arrays_of(store).meta, slots_N, np.int64(num), *known)
        return known

    def scatter(self, store: Store, slots_N: Array, columns: RowColumns) -> None:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        p, num, width = arrays_of(store), len(slots_N), store.state_width
        values_ND = self._rows("values", columns.values_ND, num, store.dim)
        states_NS = self._array("states", columns.states_NS, np.float32, num, width)
        known = [self._array(n, a, np.int64, num) for n, a in zip(columns._fields[2:], columns[2:], strict=True)]
        threads, defines = num * vectors_of(store.dim), defines_of(store)
        self._launch("rows", "scatter", threads, p.values_CD, slots_N, np.int64(num), values_ND, defines=defines)
        arguments = (*states_of(store), slots_N, np.int64(num), np.int64(width), states_NS)
        self._launch("row_metadata", "scatter_states", num * width, *arguments)
        self._launch("row_metadata", "scatter_records", num, p.meta, slots_N, np.int64(num), *known)

    def create(self, store: Store, slots_N: Array, features_N: Array, ids_N: Array, seed: int, scale: float) -> None:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        p, num = arrays_of(store), len(slots_N)
        features_N, ids_N = (
            self._array(name, array, dtype, num)
            for name, array, dtype in (("features", features_N, np.uint16), ("ids", ids_N, np.int64))
        )
        rows = (p.values_CD, p.meta, p.states_CS, np.int64(p.states_CS.shape[1]))
        arguments = (*rows, slots_N, features_N, ids_N, np.int64(num), *first_value_constants(seed, scale))
        self._launch("rows", "create", num * vectors_of(store.dim), *arguments, defines=defines_of(store))

    def clear_dirty(self, store: Store, slots_N: Array) -> Array:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        meta, num = arrays_of(store).meta, len(slots_N)
        for kernel in ("open_claims", "claim_touched"):
            self._launch("row_metadata", kernel, num, meta, slots_N, np.int64(num))
        return self._compacted("row_metadata", "touched", num, (meta, slots_N))

    def set_flags(self, store: Store, slots_N: Array, flags: int) -> None:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        num = len(slots_N)
        self._launch("row_metadata", "set_flags", num, arrays_of(store).meta, slots_N, np.int64(num), np.int64(flags))

    def _gather(self, store: Store, slots_U: Array, inverse_K: Array, num: int, out_KD: Array) -> None:
        arguments = (arrays_of(store).values_CD, slots_U, inverse_K, np.int64(num), out_KD)
        self._launch("rows", "gather", num * vectors_of(store.dim), *arguments, defines=defines_of(store))


class LearnedRowOps(Launcher):
    """The part of kernels/ops.py on rows that were learned elsewhere."""

    def write_learned(self, store: Store, slots_U: Array, values_UD: Array, states_US: Array, seed: int) -> Array:
        slots_U = self._array("slots", slots_U, np.int64, -1)
        p, num, width = arrays_of(store), len(slots_U), store.state_width
        values_UD = self._rows("values", values_UD, num, store.dim)
        states_US = self._array("states", states_US, np.float32, num, width)
        rows = (*p.keys, p.values_CD, p.meta, slots_U, np.int64(num), values_UD)
        mixed_seed = mixed_seed_of(seed + LEARNED_SEED)
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
        return self._compacted("row_metadata", "fresh", num, (fresh_U,), may_be_late=True)
