"""The ops on keys before they have rows: hashes, first values, a batch's unique keys, its occurrences by key."""

# K keys of a batch, U unique keys, D dimension, T bytes, N texts
from typing import Any

import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.types import UniqueKeys
from springtide_client.keys import mix64

MASK = 0xFFFF_FFFF_FFFF_FFFF


def first_value_constants(seed: int, scale: float) -> tuple[np.uint64, np.float32]:
    """The mixed seed, and what a first value's 24 bits are multiplied by."""
    return np.uint64(mix64(seed & MASK)), np.float32(scale * 2.0**-23)


class KeyOps(Launcher):
    """The part of kernels/ops.py that needs no store."""

    def mix_keys(self, features_U: Array, ids_U: Array) -> Array:
        features_U, ids_U = self._pairs(features_U, ids_U)
        mixed_U = self._device.empty(len(ids_U), np.uint64)
        self._launch("keys", "mix_keys", len(ids_U), features_U, ids_U, np.int64(len(ids_U)), mixed_U)
        return mixed_U

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
        mixed_U, occurrences_U = device.empty(num, np.uint64), device.empty(num, np.int64)
        last_seen_U, rank_K = device.empty(num, np.int64), device.empty(num, np.uint32)
        columns = (features_U, ids_U, mixed_U, occurrences_U, last_seen_U)
        kept = (places_P, place_of_K, features_K, ids_K)
        num_1 = self._listed("keys", "unique", num, kept, (*columns, rank_K))
        inverse_K = device.empty(num, np.int64)
        batch = (places_P, place_of_K, rank_K, event_ms_K, size, inverse_K, occurrences_U, last_seen_U)
        self._launch("keys", "count_occurrences", num, *batch)
        if not self._exact:
            self._launch("keys", "pad_unique", num, num_1, size, *columns)
        features_U, ids_U, mixed_U, occurrences_U, last_seen_U = self._trim(num_1, *columns)
        return UniqueKeys(features_U, ids_U, mixed_U, inverse_K, occurrences_U, last_seen_U)

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
