"""The ops on the CPU: checks dtypes and shapes, and calls the kernels."""

# K keys of a batch, U unique keys, N some of them, D dimension, S optimizer state width, O overflow rows
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu import hashing
from springtide.kernels.cpu.index import unique as uniques
from springtide.kernels.cpu.index.index_ops import IndexOps
from springtide.kernels.cpu.rows import learned_rows, rows
from springtide.kernels.cpu.rows.gather import MODES, compiled_gather, compiled_pool, compiled_scaled_sum
from springtide.kernels.cpu.rows.optimizers import check_step, constants_of, corrections
from springtide.kernels.cpu.rows.update import GradientBatch, RowArrays, UpdateKeyArrays, compiled_update
from springtide.kernels.cpu.sketch import SketchOps
from springtide.kernels.cpu.store.host_arrays import HostArrays
from springtide.kernels.cpu.store.store import arrays_of
from springtide.kernels.cpu.store.store_ops import StoreOps
from springtide.kernels.types import OptimizerStep, RowColumns, Spread, Store, UniqueKeys, run_inline

Array = npt.NDArray[Any]


class CpuOps(HostArrays, StoreOps, IndexOps, SketchOps):
    """The ops of kernels/ops.py, on numpy arrays. One thread at a time, `find` and `update` apart."""

    def __init__(self) -> None:
        # scratch that is kept: fresh memory costs more in page faults than the work on it
        self._places: Array = np.empty(0, np.uint32)
        self._entries: Array = np.empty(0, np.uint64)

    def hash_keys(self, features_U: Array, ids_U: Array) -> Array:
        return cast(Array, hashing.hash_keys(features_U, ids_U))

    def hash_texts(self, bytes_T: Array, offsets_N1: Array) -> Array:
        return cast(Array, hashing.hash_texts(bytes_T, offsets_N1))

    def initial_values(self, features_U: Array, ids_U: Array, dim: int, seed: int, scale: float) -> Array:
        return cast(Array, hashing.initial_values(features_U, ids_U, dim, *hashing.first_value_constants(seed, scale)))

    def unique(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> UniqueKeys:
        num_places = 1 << max(4, (2 * len(ids_K)).bit_length())
        if len(self._places) < num_places:
            self._places = np.empty(num_places, np.uint32)
            self._entries = np.empty(4 * num_places, np.uint64)
        return UniqueKeys(*uniques.unique(features_K, ids_K, event_ms_K, self._places[:num_places], self._entries))

    def gather(self, store: Store, slots_U: Array, inverse_K: Array, out: Array | None = None) -> Array:
        shape = (len(inverse_K), store.dim)
        out_KD = np.empty(shape, np.float32) if out is None else out
        if out_KD.dtype != np.float32 or out_KD.shape != shape or not out_KD.flags.c_contiguous:
            raise ValueError(f"out {out_KD.dtype} {out_KD.shape} for contiguous float32 {shape}")
        values_CD = arrays_of(store).values_CD
        compiled_gather(store.dim)(values_CD.reshape(-1), slots_U, inverse_K, out_KD.reshape(-1))
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
        ends = (0, len(inverse_K))
        if not len(offsets_B1) or (offsets_B1[0], offsets_B1[-1]) != ends or (np.diff(offsets_B1) < 0).any():
            raise ValueError(f"offsets must go from 0 to the number of keys, {len(inverse_K)}, never back")
        out_BD = np.empty((len(offsets_B1) - 1, store.dim), np.float32)
        if scales_K is not None:
            if mode != "sum":
                raise ValueError(f'mode must be "sum" where keys have factors, not {mode!r}')
            scales_K, values_CD = _of_length(scales_K, len(inverse_K), np.float32), arrays_of(store).values_CD
            compiled_scaled_sum(store.dim)(
                values_CD.reshape(-1), slots_U, inverse_K, offsets_B1, scales_K, out_BD.reshape(-1)
            )
            return out_BD, None
        winners_BD = np.empty(out_BD.shape if mode == "max" else (0, 0), np.int64)
        values_CD = arrays_of(store).values_CD
        compiled_pool(store.dim, mode)(
            values_CD.reshape(-1), slots_U, inverse_K, offsets_B1, out_BD.reshape(-1), winners_BD.reshape(-1)
        )
        return out_BD, winners_BD if mode == "max" else None

    def counts_of(self, store: Store, slots_N: Array) -> Array:
        counts_N: Array = arrays_of(store).meta[slots_N, rows.COUNT]
        return counts_N

    def read(self, store: Store, slots_N: Array, spread: Spread = run_inline) -> RowColumns:
        p, num = arrays_of(store), len(slots_N)
        values_ND, states_NS = np.empty((num, store.dim), np.float32), np.empty((num, store.state_width), np.float32)
        columns = RowColumns(values_ND, states_NS, *(np.empty(num, np.int64) for _ in range(3)))

        def copy(start: int, stop: int) -> None:
            wide = store.layout.wide_width
            rows.read(p.values_CD, p.meta, p.scalars, p.states_CS, wide, slots_N, start, stop, *columns)

        spread(copy, num)
        return columns

    def scatter(self, store: Store, slots_N: Array, columns: RowColumns) -> None:
        p, wide = arrays_of(store), store.layout.wide_width
        values_ND, states_NS = _checked_rows(store, len(slots_N), columns.values_ND, columns.states_NS)
        rows.scatter(p.values_CD, p.meta, p.scalars, p.states_CS, wide, slots_N, values_ND, states_NS, *columns[2:])

    def write_learned(self, store: Store, slots_U: Array, values_UD: Array, states_US: Array, seed: int) -> Array:
        p = arrays_of(store)
        values_UD, states_US = _checked_rows(store, len(slots_U), values_UD, states_US)
        values = p.values_CD.reshape(-1)
        if values.dtype == np.float32:
            learned_rows.copy_values(values, slots_U, values_UD)
        else:
            keys = p.buckets, p.overflow, np.uint64(store.num_slots)
            mixed_seed = hashing.mixed_seed_of(seed + learned_rows.LEARNED_SEED)
            learned_rows.round_values(values, p.meta, *keys, slots_U, values_UD, mixed_seed)
        wide = store.layout.wide_width
        return cast(Array, learned_rows.write_states(p.meta, p.scalars, p.states_CS, wide, slots_U, states_US))

    def touch(
        self, store: Store, slots_U: Array, occurrences_U: Array, last_seen_U: Array, count_priority: bool
    ) -> Array:
        p = arrays_of(store)
        if not len(slots_U) == len(occurrences_U) == len(last_seen_U):
            raise ValueError(f"{len(occurrences_U)} counts and {len(last_seen_U)} times for {len(slots_U)} rows")
        keys = p.buckets.words, p.overflow.scores_O, np.uint64(store.num_slots)
        return cast(Array, learned_rows.touch(p.meta, *keys, slots_U, occurrences_U, last_seen_U, count_priority))

    def create(self, store: Store, slots_N: Array, features_N: Array, ids_N: Array, seed: int, scale: float) -> None:
        p = arrays_of(store)
        constants = hashing.first_value_constants(seed, scale)
        rows.create(p.values_CD, p.meta, p.states_CS, slots_N, features_N, ids_N, *constants)

    def group(self, inverse_K: Array, occurrences_U: Array) -> tuple[Array, Array]:
        order_K, offsets_U1 = uniques.group(inverse_K, occurrences_U)
        return order_K, offsets_U1

    def update(
        self,
        store: Store,
        slots_U: Array,
        order_K: Array,
        offsets_U1: Array,
        grads_BD: Array,
        last_seen_U: Array,
        step: OptimizerStep,
        count_priority: bool,
        start: int,
        stop: int,
        bags_K: Array | None = None,
        scales_K: Array | None = None,
    ) -> tuple[Array, int]:
        check_step(store, step)
        num_gradients = len(order_K) if bags_K is None else len(grads_BD)
        if grads_BD.dtype != np.float32 or grads_BD.shape != (num_gradients, store.dim):
            raise ValueError(f"gradients {grads_BD.dtype} {grads_BD.shape} for float32 {(num_gradients, store.dim)}")
        p = arrays_of(store)
        fresh_N, num_refused = compiled_update(store.dim, step.name, p.values_CD.dtype != np.float32, count_priority)(
            RowArrays(
                p.values_CD.reshape(-1),
                p.meta.reshape(-1),
                p.scalars.reshape(-1),
                p.states_CS.reshape(-1),
                np.uint64(p.states_CS.shape[1]),
            ),
            UpdateKeyArrays(p.buckets, p.overflow, np.uint64(store.num_slots)),
            GradientBatch(
                slots_U,
                order_K,
                offsets_U1,
                last_seen_U,
                np.ascontiguousarray(grads_BD).reshape(-1),
                _of_length(bags_K, len(order_K), np.int64),
                _of_length(scales_K, len(order_K), np.float32),
            ),
            constants_of(step),
            corrections(step.name, step.beta1, step.beta2),
            hashing.mixed_seed_of(step.seed),
            start,
            stop,
        )
        return fresh_N, int(num_refused)

    def clear_dirty(self, store: Store, slots_N: Array) -> Array:
        return cast(Array, rows.clear_dirty(arrays_of(store).meta, slots_N))

    def set_flags(self, store: Store, slots_N: Array, flags: int) -> None:
        rows.set_flags(arrays_of(store).meta, slots_N, flags)


def _checked_rows(store: Store, num: int, values_ND: Array, states_NS: Array) -> tuple[Array, Array]:
    """Values and states as the kernels take them; ValueError where they do not fit the store."""
    if values_ND.shape != (num, store.dim):
        raise ValueError(f"values of shape {values_ND.shape} for {num} rows of {store.dim}")
    if states_NS.shape != (num, store.state_width):
        raise ValueError(f"states of shape {states_NS.shape} for {num} rows with {store.state_width}")
    return np.ascontiguousarray(values_ND, np.float32), np.ascontiguousarray(states_NS, np.float32)


def _of_length(array: Array | None, num: int, dtype: Any) -> Array | None:
    if array is not None and array.shape != (num,):
        raise ValueError(f"shape {array.shape} for {num} occurrences")
    return None if array is None else np.ascontiguousarray(array, dtype)
