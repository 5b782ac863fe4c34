"""The ops that find and place keys: launches only; what the kernels promise is in README.md."""

# U unique keys, K the same in another order, N some of them, V victims
from typing import Any

import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.store import arrays_of
from springtide.kernels.types import TICK_BITS, InsertResult, Store

TILE = 8  # threads that look for one key


class IndexOps(Launcher):
    """The index's part of kernels/ops.py."""

    def find(self, store: Store, features_U: Array, ids_U: Array, mixed_U: Array) -> Array:
        keys_U = self._keys(features_U, ids_U, mixed_U)
        num, slots_U = len(keys_U[0]), self._device.empty(len(keys_U[0]), np.int64)
        self._launch("find", "find", num * TILE, *arrays_of(store).keys, *keys_U, np.int64(num), slots_U)
        return slots_U

    def find_or_insert(
        self,
        store: Store,
        features_U: Array,
        ids_U: Array,
        mixed_U: Array,
        tick: int,
        protect_from: int,
        num_new: int | None = None,
    ) -> InsertResult:
        """1. Find and protect. 2. Sort the others by bucket. 3. Insert bucket by bucket. 4. Overflow. 5. Lists."""
        if not 0 <= tick < 1 << TICK_BITS:
            raise ValueError(f"tick must have {TICK_BITS} bits, not {tick}")
        device, keys = self._device, arrays_of(store).keys
        keys_U = self._keys(features_U, ids_U, mixed_U)
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

    def _keys(self, features_U: Any, ids_U: Any, mixed_U: Any) -> tuple[Array, Array, Array]:
        ids_U = self._array("ids", ids_U, np.int64, -1)
        num = len(ids_U)
        features_U = self._array("features", features_U, np.uint16, num)
        return features_U, ids_U, self._array("mixed keys", mixed_U, np.uint64, num)
