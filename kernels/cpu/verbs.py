"""The verbs on the CPU: allocates the arrays of a store, checks dtypes and calls the kernels."""

# K keys of a batch, U unique keys, N some of them, D dimension, S optimizer state width, O overflow rows
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from springtide_client.keys import mix64

from kernels.cpu import hashing, index, rows, wide
from kernels.cpu import unique as uniques
from kernels.spec import WIDTH, Columns, Placed, Store, Unique

Array = npt.NDArray[Any]
LINE = 64
MASK = 0xFFFF_FFFF_FFFF_FFFF


class Parts(NamedTuple):
    """The arrays behind a store; several are views of the same bytes."""

    words: Array
    features: Array
    bytes_: Array
    values_CD: Array
    meta: Array
    states: Array
    features_O: Array
    ids_O: Array
    scores_O: Array
    free_O: Array
    places_P: Array
    num_free_1: Array


def aligned_zeros(num: int, dtype: Any) -> Array:
    """Zeros that begin at a cache line."""
    size = np.dtype(dtype).itemsize * num
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype)


class CpuVerbs:
    """The verbs of kernels/spec.py, on numpy arrays. One thread at a time, `update` apart."""

    def __init__(self) -> None:
        # scratch that is kept: fresh memory costs more in page faults than the work on it
        self._places: Array = np.empty(0, np.uint32)
        self._entries: Array = np.empty(0, np.uint64)

    def allocate(self, num_slots: int, num_overflow: int, dim: int, state_width: int) -> Store:
        if num_slots % WIDTH or num_slots < WIDTH or num_slots // WIDTH >= 2**32:
            raise ValueError(f"num_slots must be a multiple of {WIDTH} in {WIDTH}..2**36, not {num_slots}")
        if state_width not in (0, 1):
            raise ValueError(f"state_width must be 0 or 1, not {state_width}")
        words = aligned_zeros(num_slots // WIDTH * index.WORDS, np.uint64)
        return self._with_overflow(num_slots, num_overflow, dim, state_width, words)

    def _with_overflow(self, num_slots: int, num_overflow: int, dim: int, state_width: int, words: Array) -> Store:
        num_rows = num_slots + num_overflow
        values_CD = aligned_zeros(num_rows * dim, np.float32).reshape(num_rows, dim)
        meta = aligned_zeros(num_rows * 4, np.int64).reshape(num_rows, 4)
        parts = Parts(
            words=words,
            features=words.view(np.uint16),
            bytes_=words.view(np.uint8),
            values_CD=values_CD,
            meta=meta,
            states=meta.view(np.float32),
            features_O=np.zeros(num_overflow, np.uint16),
            ids_O=np.zeros(num_overflow, np.int64),
            scores_O=np.full(num_overflow, -1, np.int64),
            free_O=np.zeros(num_overflow, np.int64),
            places_P=np.zeros(1 << (2 * num_overflow).bit_length(), np.int64),
            num_free_1=np.zeros(1, np.int64),
        )
        self._rebuild(parts)
        owned = (words, values_CD, meta, *parts[6:])
        return Store(num_slots, num_overflow, dim, state_width, parts, sum(array.nbytes for array in owned))

    def slot_bytes(self, dim: int, state_width: int) -> int:
        return index.WORDS * 8 // WIDTH + 4 * dim + 32

    def grow_overflow(self, store: Store, num_overflow: int) -> Store:
        old = _parts(store)
        grown = self._with_overflow(store.num_slots, num_overflow, store.dim, store.state_width, old.words)
        new = _parts(grown)
        num_rows = store.num_slots + store.num_overflow
        new.values_CD[:num_rows] = old.values_CD
        new.meta[:num_rows] = old.meta
        for to, source in zip(new[6:9], old[6:9], strict=True):
            to[: store.num_overflow] = source
        self._rebuild(new)
        return grown

    def _rebuild(self, parts: Parts) -> None:
        index.rebuild_overflow(*parts[6:])

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

    def find(self, store: Store, features_U: Array, ids_U: Array, mixed_U: Array) -> Array:
        p = _parts(store)
        num_in_overflow = store.num_overflow - int(p.num_free_1[0])
        found = index.find(
            p.words,
            p.features,
            store.num_slots // WIDTH,
            p.features_O,
            p.ids_O,
            p.places_P,
            num_in_overflow,
            features_U,
            ids_U,
            mixed_U,
        )
        return cast(Array, found)

    def find_or_insert(
        self, store: Store, features_U: Array, ids_U: Array, mixed_U: Array, score: int, protect_from: int
    ) -> Placed:
        p = _parts(store)
        placed = index.find_or_insert(
            p.words,
            p.features,
            p.bytes_,
            store.num_slots // WIDTH,
            *p[6:],
            features_U,
            ids_U,
            mixed_U,
            score,
            protect_from,
        )
        return Placed(*placed)

    def erase(self, store: Store, slots_N: Array) -> None:
        p = _parts(store)
        if index.erase(p.bytes_, store.num_slots // WIDTH, p.scores_O, p.meta, slots_N):
            self._rebuild(p)

    def keys_of(self, store: Store, slots_N: Array) -> tuple[Array, Array]:
        p = _parts(store)
        num_buckets = store.num_slots // WIDTH
        features_N, ids_N = index.keys_of(p.words, p.features, num_buckets, p.features_O, p.ids_O, slots_N)
        return features_N, ids_N

    def gather(self, store: Store, slots_U: Array, inverse_K: Array) -> Array:
        out_KD = np.empty((len(inverse_K), store.dim), np.float32)
        wide.gather_of(store.dim)(_parts(store).values_CD.reshape(-1), slots_U, inverse_K, out_KD.reshape(-1))
        return out_KD

    def read(self, store: Store, slots_N: Array) -> Columns:
        p = _parts(store)
        return Columns(*rows.read(p.values_CD, p.meta, p.states, slots_N, store.state_width))

    def scatter(self, store: Store, slots_N: Array, columns: Columns) -> None:
        p = _parts(store)
        if columns.values_ND.shape != (len(slots_N), store.dim):
            raise ValueError(f"values of shape {columns.values_ND.shape} for {len(slots_N)} rows of {store.dim}")
        rows.scatter(p.values_CD, p.meta, p.states, slots_N, *columns)

    def create(self, store: Store, slots_N: Array, features_N: Array, ids_N: Array, seed: int, scale: float) -> None:
        p = _parts(store)
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
        p = _parts(store)
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
        return cast(Array, rows.clear_touched(_parts(store).meta, slots_N))

    def set_flags(self, store: Store, slots_N: Array, flags: int) -> None:
        rows.set_flags(_parts(store).meta, slots_N, flags)

    def scan(self, store: Store, start: int, stop: int, feature: int, last_seen_before: int) -> Array:
        p = _parts(store)
        num_buckets = store.num_slots // WIDTH
        slots_N = index.scan(
            p.bytes_,
            p.features,
            num_buckets,
            p.features_O,
            p.scores_O,
            p.meta,
            start,
            stop,
            feature,
            last_seen_before,
        )
        return cast(Array, slots_N)

    def overflow(self, store: Store, protect_from: int) -> Array:
        p = _parts(store)
        if p.num_free_1[0] == store.num_overflow:
            return np.empty(0, np.int64)
        return cast(Array, index.overflow(store.num_slots // WIDTH, p.scores_O, protect_from))


def _parts(store: Store) -> Parts:
    return cast(Parts, store.arrays)


def _first_value_constants(seed: int, scale: float) -> tuple[np.uint64, np.float32]:
    return np.uint64(mix64(seed & MASK)), np.float32(scale * 2.0**-23)
