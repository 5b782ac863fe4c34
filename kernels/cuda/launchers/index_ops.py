"""The ops that find and place keys: launches only; what the kernels promise is in README.md."""

# K keys of a batch, U unique keys, N some of them, slots or texts, V victims, F features, D dimension, T bytes
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import first_value_constants
from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.store import arrays_of
from springtide.kernels.types import TICK_BITS, InsertResult, Store, UniqueKeys


class KeyOps(Launcher):
    """The part of kernels/ops.py that needs no store."""

    def hash_keys(self, features_U: Array, ids_U: Array) -> Array:
        features_U, ids_U = self._pairs(features_U, ids_U)
        key_hash_U = self._device.empty(len(ids_U), np.uint64)
        self._launch("keys", "mix_keys", len(ids_U), features_U, ids_U, np.int64(len(ids_U)), key_hash_U)
        return key_hash_U

    def hash_texts(self, bytes_T: Array, offsets_N1: Array) -> Array:
        bytes_T = self._array("bytes", bytes_T, np.uint8, -1)
        offsets_N1 = self._array("offsets", offsets_N1, np.int64, -1)
        num = len(offsets_N1) - 1
        ids_N = self._device.empty(num, np.int64)
        self._launch("keys", "hash_texts", num, bytes_T, offsets_N1, np.int64(num), ids_N)
        return ids_N

    def initial_values(self, features_U: Array, ids_U: Array, dim: int, seed: int, scale: float) -> Array:
        features_U, ids_U = self._pairs(features_U, ids_U)
        num, constants = len(ids_U), first_value_constants(seed, scale)
        values_UD = self._device.empty((num, dim), np.float32)
        sizes = (np.int64(num), np.int64(dim))
        self._launch("keys", "initial_values", num * dim, features_U, ids_U, *sizes, *constants, values_UD)
        return values_UD

    def unique(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> UniqueKeys:
        features_K, ids_K = self._pairs(features_K, ids_K)
        event_ms_K = self._array("event times", event_ms_K, np.int64, len(ids_K))
        device, num = self._device, len(ids_K)
        size, num_places = np.int64(num), 1 << max(4, (2 * num).bit_length())
        places_P, place_of_K = device.filled(num_places, np.uint32, 0xFF), device.empty(num, np.uint32)
        self._launch(
            "keys", "enter_keys", num, features_K, ids_K, size, places_P, np.uint64(num_places - 1), place_of_K
        )
        features_U, ids_U = device.empty(num, np.uint16), device.empty(num, np.int64)
        key_hash_U, occurrences_U = device.empty(num, np.uint64), device.empty(num, np.int64)
        last_seen_U, rank_K = device.empty(num, np.int64), device.empty(num, np.uint32)
        columns = (features_U, ids_U, key_hash_U, occurrences_U, last_seen_U)
        kept = (places_P, place_of_K, features_K, ids_K)
        num_1 = self._listed("keys", "unique", num, kept, (*columns, rank_K))
        inverse_K = device.empty(num, np.int64)
        batch = (places_P, place_of_K, rank_K, event_ms_K, size, inverse_K, occurrences_U, last_seen_U)
        self._launch("keys", "count_occurrences", num, *batch)
        if not self._exact:
            self._launch("keys", "pad_unique", num, num_1, size, *columns)
        features_U, ids_U, key_hash_U, occurrences_U, last_seen_U = self._trim(num_1, *columns)
        return UniqueKeys(features_U, ids_U, key_hash_U, inverse_K, occurrences_U, last_seen_U)

    def group(self, inverse_K: Array, occurrences_U: Array) -> tuple[Array, Array]:
        inverse_K = self._array("inverse", inverse_K, np.int64, -1)
        num, num_unique = len(inverse_K), len(occurrences_U)
        narrow_K, offsets_U1 = self._device.empty(num, np.int32), self._device.empty(num_unique + 1, np.int64)
        self._launch("keys", "narrow_positions", num, inverse_K, np.int64(num), narrow_K)
        sorted_K, order_K = self._device.sort(narrow_K)
        sizes = (np.int64(num), np.int64(num_unique))
        self._launch("keys", "begin_keys", num_unique + 1, sorted_K, *sizes, offsets_U1)
        return order_K, offsets_U1

    def _pairs(self, features_U: Any, ids_U: Any) -> tuple[Array, Array]:
        ids_U = self._array("ids", ids_U, np.int64, -1)
        return self._array("features", features_U, np.uint16, len(ids_U)), ids_U


TILE = 8  # threads that look for one key


class IndexOps(Launcher):
    """The index's part of kernels/ops.py."""

    def find(self, store: Store, features_U: Array, ids_U: Array, key_hash_U: Array) -> Array:
        keys_U = self._keys(features_U, ids_U, key_hash_U)
        num, slots_U = len(keys_U[0]), self._device.empty(len(keys_U[0]), np.int64)
        self._launch("find", "find", num * TILE, *arrays_of(store).keys, *keys_U, np.int64(num), slots_U)
        return slots_U

    def find_or_insert(
        self,
        store: Store,
        features_U: Array,
        ids_U: Array,
        key_hash_U: Array,
        tick: int,
        protect_from: int,
        num_new: int | None = None,
    ) -> InsertResult:
        """1. Find and protect. 2. Sort the others by bucket. 3. Insert bucket by bucket. 4. Overflow. 5. Lists."""
        if not 0 <= tick < 1 << TICK_BITS:
            raise ValueError(f"tick must have {TICK_BITS} bits, not {tick}")
        device, keys = self._device, arrays_of(store).keys
        keys_U = self._keys(features_U, ids_U, key_hash_U)
        num, size, at = len(keys_U[0]), np.int64(len(keys_U[0])), np.int64(tick)
        slots_U, homes_U = device.empty(num, np.int64), device.empty(num, np.int32)
        self._launch("find", "locate", num * TILE, *keys, *keys_U, size, at, slots_U, homes_U)
        homes_K, order_K = device.sort(homes_U)
        is_new_U, is_crowded_U = device.filled(num, np.uint8, 0), device.filled(num, np.uint8, 0)
        victims_U = (device.filled(num, np.int64, 0xFF), device.empty(num, np.uint16), device.empty(num, np.int64))
        num_crowded_1, protected = device.filled(1, np.uint32, 0), np.int64(min(protect_from, 1 << TICK_BITS))
        outcome = (slots_U, is_new_U, is_crowded_U, *victims_U, num_crowded_1)
        self._launch("insert_and_evict", "place", num, *keys, *keys_U, homes_K, order_K, size, at, protected, *outcome)
        free_O, scratch = device.empty(store.num_overflow, np.int32), device.empty(2, np.int64)
        arguments = (
            *keys_U,
            size,
            at,
            is_crowded_U,
            num_crowded_1,
            slots_U,
            is_new_U,
            free_O,
            scratch[:1],
            scratch[1:],
        )
        self._launch("insert_and_evict", "place_elsewhere", min(num, 1), *keys, *arguments)
        is_known = num_new is not None
        new_N, slots_V = self._list_of(num, np.int64), self._list_of(num, np.int64, may_be_late=is_known)
        features_V, ids_V = device.empty(num, np.uint16), device.empty(num, np.int64)
        num_new_1 = self._listed("insert_and_evict", "new", num, (is_new_U,), (new_N,))
        num_victims_1 = self._listed("insert_and_evict", "victims", num, victims_U, (slots_V, features_V, ids_V))
        if not self._exact:
            return InsertResult(slots_U, new_N, slots_V, features_V, ids_V, num_crowded_1)
        if self._late and num_new is not None:
            at_most = slice(num_new)
            return InsertResult(
                slots_U, new_N[at_most], slots_V[at_most], features_V[at_most], ids_V[at_most], num_crowded_1
            )
        num_new, num_gone, num_overflowed = device.read(num_new_1, num_victims_1, num_crowded_1)
        return InsertResult(
            slots_U, new_N[:num_new], slots_V[:num_gone], features_V[:num_gone], ids_V[:num_gone], num_overflowed
        )

    def set_priorities(self, store: Store, slots_N: Array, priorities_N: Array) -> None:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        priorities_N = self._array("priorities", priorities_N, np.int64, len(slots_N))
        num = len(slots_N)
        self._launch("find", "set_priorities", num, *arrays_of(store).keys, slots_N, priorities_N, np.int64(num))

    def erase(self, store: Store, slots_N: Array) -> None:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        p, num, num_left_1 = arrays_of(store), len(slots_N), self._device.filled(1, np.uint32, 0)
        self._launch("find", "erase", num, *p.keys, p.meta, slots_N, np.int64(num), num_left_1)
        self._launch("insert_and_evict", "rebuild", min(num, 1), *p.keys, num_left_1)

    def keys_of(self, store: Store, slots_N: Array) -> tuple[Array, Array]:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        num = len(slots_N)
        features_N, ids_N = self._device.empty(num, np.uint16), self._device.empty(num, np.int64)
        self._launch("find", "keys_of", num, *arrays_of(store).keys, slots_N, np.int64(num), features_N, ids_N)
        return features_N, ids_N

    def _keys(self, features_U: Any, ids_U: Any, key_hash_U: Any) -> tuple[Array, Array, Array]:
        ids_U = self._array("ids", ids_U, np.int64, -1)
        num = len(ids_U)
        features_U = self._array("features", features_U, np.uint16, num)
        return features_U, ids_U, self._array("key hashes", key_hash_U, np.uint64, num)


NUM_DIGITS = 21  # by which the lowest are chosen: scan.cu


class ScanOps(Launcher):
    """The sweeps' part of kernels/ops.py."""

    def find_expired(self, store: Store, slots_N: Array, features_N: Array, cutoffs_F: Array) -> Array:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        num = len(slots_N)
        features_N = self._array("features", features_N, np.uint16, num)
        cutoffs_F = self._array("expiry_cutoffs", cutoffs_F, np.int64, -1)
        kept = (arrays_of(store).meta, slots_N, features_N, cutoffs_F, np.int64(len(cutoffs_F)))
        return self._compacted("scan", "dead", num, kept, may_be_late=True)

    def occupied_slots(self, store: Store, start: int, stop: int) -> Array:
        kept = (*arrays_of(store).keys, np.int64(start))
        return self._compacted("scan", "occupied", max(0, stop - start), kept)

    def expired_slots(self, store: Store, start: int, stop: int, cutoffs_F: Array) -> Array:
        cutoffs_F, p = self._array("expiry_cutoffs", cutoffs_F, np.int64, -1), arrays_of(store)
        kept = (*p.keys, p.meta, cutoffs_F, np.int64(len(cutoffs_F)), np.int64(start))
        return self._compacted("scan", "expired", max(0, stop - start), kept, may_be_late=True)

    def overflow_slots(self, store: Store, protect_from: int) -> Array:
        kept = (*arrays_of(store).keys, np.int64(min(protect_from, 1 << TICK_BITS)))
        return self._compacted("scan", "overflow", store.num_overflow, kept)

    def lowest_scores(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        """1. Choose the threshold digit by digit. 2. List what is not above it. 3. Sort by key hash, then by score."""
        device, keys, num = self._device, arrays_of(store).keys, min(num, store.num_slots)
        if num <= 0:
            return device.empty(0, np.int64)
        which = (np.int64(feature), np.int64(min(protect_from, 1 << TICK_BITS)))
        words, bins = device.filled(3, np.int64, 0), device.filled(256, np.uint32, 0)
        wanted_1 = device.put(np.array([num], np.int64))
        for digit in range(NUM_DIGITS):
            self._launch("scan", "count_digits", store.num_slots, *keys, *which, np.int32(digit), words, bins)
            self._launch("scan", "choose_digit", 1, np.int32(digit), words, wanted_1, bins)
        slots_N = self._device.filled(num, np.int64, 0xFF)
        num_1 = self._listed("scan", "low", store.num_slots, (*keys, *which, words), (slots_N,))
        for word in (1, 0):
            words_N, sorted_N = device.empty(num, np.int64), device.empty(num, np.int64)
            self._launch("scan", "sort_words", num, *keys, slots_N, np.int64(num), np.int32(word), words_N)
            _, order_N = device.sort(words_N)
            self._launch("scan", "take", num, slots_N, order_N, np.int64(num), sorted_N)
            slots_N = sorted_N
        return self._trim(num_1, slots_N)[0]
