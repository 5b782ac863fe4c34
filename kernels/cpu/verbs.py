"""The verbs on the CPU: allocates the arrays of a store, checks dtypes and calls the kernels."""

# K keys of a batch, U unique keys, N some of them, D dimension, S optimizer state width, O overflow rows
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from springtide_client.keys import mix64

from kernels.cpu import hashing, rows, wide
from kernels.cpu import unique as uniques
from kernels.cpu.index import WORDS
from kernels.cpu.index_verbs import IndexVerbs
from kernels.cpu.overflow import empty_overflow, grown_overflow
from kernels.cpu.sketch_verbs import SketchVerbs
from kernels.cpu.store import empty_buckets, new_store, parts_of
from kernels.spec import WIDTH, Columns, Store, Unique

Array = npt.NDArray[Any]
MASK = 0xFFFF_FFFF_FFFF_FFFF


class CpuVerbs(IndexVerbs, SketchVerbs):
    """The verbs of kernels/spec.py, on numpy arrays. One thread at a time, `find` and `update` apart."""

    def __init__(self) -> None:
        # scratch that is kept: fresh memory costs more in page faults than the work on it
        self._places: Array = np.empty(0, np.uint32)
        self._entries: Array = np.empty(0, np.uint64)

    def allocate(self, num_slots: int, num_overflow: int, dim: int, state_width: int) -> Store:
        if num_slots % WIDTH or num_slots < WIDTH or num_slots // WIDTH >= 2**32:
            raise ValueError(f"num_slots must be a multiple of {WIDTH} in {WIDTH}..2**36, not {num_slots}")
        if state_width not in (0, 1):
            raise ValueError(f"state_width must be 0 or 1, not {state_width}")
        return new_store(num_slots, dim, state_width, empty_buckets(num_slots), empty_overflow(num_overflow))

    def slot_bytes(self, dim: int, state_width: int) -> int:
        return WORDS * 8 // WIDTH + 4 * dim + 32

    def grow_overflow(self, store: Store, num_overflow: int) -> Store:
        p = parts_of(store)
        overflow = grown_overflow(p.overflow, num_overflow)
        return new_store(store.num_slots, store.dim, store.state_width, p.buckets, overflow, p)

    def mix_keys(self, features_U: Array, ids_U: Array) -> Array:
        return cast(Array, hashing.mix_keys(features_U, ids_U))

    def hash_texts(self, bytes_T: Array, offsets_N1: Array) -> Array:
        return cast(Array, hashing.hash_texts(bytes_T, offsets_N1))

    def first_values(self, features_U: Array, ids_U: Array, dim: int, seed: int, scale: float) -> Array:
        return cast(Array, hashing.first_values(features_U, ids_U, dim, *_first_value_constants(seed, scale)))

    def unique(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> Unique:
        num_places = 1 << max(4, (2 * len(ids_K)).bit_length())
        if len(self._places) < num_places:
            self._places = np.empty(num_places, np.uint32)
            self._entries = np.empty(4 * num_places, np.uint64)
        return Unique(*uniques.unique(features_K, ids_K, event_ms_K, self._places[:num_places], self._entries))

    def gather(self, store: Store, slots_U: Array, inverse_K: Array) -> Array:
        out_KD = np.empty((len(inverse_K), store.dim), np.float32)
        wide.gather_of(store.dim)(parts_of(store).values_CD.reshape(-1), slots_U, inverse_K, out_KD.reshape(-1))
        return out_KD

    def read(self, store: Store, slots_N: Array) -> Columns:
        p = parts_of(store)
        return Columns(*rows.read(p.values_CD, p.meta, p.states, slots_N, store.state_width))

    def scatter(self, store: Store, slots_N: Array, columns: Columns) -> None:
        p = parts_of(store)
        if columns.values_ND.shape != (len(slots_N), store.dim):
            raise ValueError(f"values of shape {columns.values_ND.shape} for {len(slots_N)} rows of {store.dim}")
        rows.scatter(p.values_CD, p.meta, p.states, slots_N, *columns)

    def create(self, store: Store, slots_N: Array, features_N: Array, ids_N: Array, seed: int, scale: float) -> None:
        p = parts_of(store)
        rows.create(p.values_CD, p.meta, slots_N, features_N, ids_N, *_first_value_constants(seed, scale))

    def group(self, inverse_K: Array, occurrences_U: Array) -> tuple[Array, Array]:
        order_K, offsets_U1 = uniques.group(inverse_K, occurrences_U)
        return order_K, offsets_U1

    def update(
        self,
        store: Store,
        slots_U: Array,
        order_K: Array,
        offsets_U1: Array,
        grads_KD: Array,
        last_seen_U: Array,
        lr: float,
        eps: float,
        start: int,
        stop: int,
    ) -> tuple[Array, int]:
        p = parts_of(store)
        if grads_KD.dtype != np.float32 or grads_KD.shape != (len(order_K), store.dim):
            raise ValueError(f"gradients {grads_KD.dtype} {grads_KD.shape} for float32 {(len(order_K), store.dim)}")
        fresh_N, num_refused = wide.update_of(store.dim)(
            p.values_CD.reshape(-1),
            p.meta.reshape(-1),
            p.states.reshape(-1),
            slots_U,
            order_K,
            offsets_U1,
            np.ascontiguousarray(grads_KD).reshape(-1),
            last_seen_U,
            np.float32(lr),
            np.float32(eps),
            start,
            stop,
        )
        return fresh_N, int(num_refused)

    def clear_touched(self, store: Store, slots_N: Array) -> Array:
        return cast(Array, rows.clear_touched(parts_of(store).meta, slots_N))

    def set_flags(self, store: Store, slots_N: Array, flags: int) -> None:
        rows.set_flags(parts_of(store).meta, slots_N, flags)


def _first_value_constants(seed: int, scale: float) -> tuple[np.uint64, np.float32]:
    return np.uint64(mix64(seed & MASK)), np.float32(scale * 2.0**-23)
