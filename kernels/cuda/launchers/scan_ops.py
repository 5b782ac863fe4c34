"""The ops that scan slots: occupied, expired, lowest scores, and the overflow area."""

# N some slots, F features
import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.store import arrays_of
from springtide.kernels.types import TICK_BITS, Store

NUM_DIGITS = 21  # by which the lowest are chosen: scan.cu


class ScanOps(Launcher):
    """The sweeps' part of kernels/ops.py."""

    def find_expired(self, store: Store, slots_N: Array, features_N: Array, cutoffs_F: Array) -> Array:
        slots_N = self._array("slots", slots_N, np.int64, -1)
        num = len(slots_N)
        features_N = self._array("features", features_N, np.uint16, num)
        cutoffs_F = self._array("expiry_cutoffs", cutoffs_F, np.int64, -1)
        kept = (arrays_of(store).meta, slots_N, features_N, cutoffs_F, np.int64(len(cutoffs_F)))
        positions_M = self._list_of(num, np.int64, may_be_late=True)
        num_1 = self._listed("scan", "dead", num, kept, (positions_M,))
        return positions_M if self._late else self._trim(num_1, positions_M)[0]

    def occupied_slots(self, store: Store, start: int, stop: int) -> Array:
        num = max(0, stop - start)
        slots_N = self._list_of(num, np.int64)
        kept = (*arrays_of(store).keys, np.int64(start))
        return self._trim(self._listed("scan", "occupied", num, kept, (slots_N,)), slots_N)[0]

    def expired_slots(self, store: Store, start: int, stop: int, cutoffs_F: Array) -> Array:
        cutoffs_F, num, p = (
            self._array("expiry_cutoffs", cutoffs_F, np.int64, -1),
            max(0, stop - start),
            arrays_of(store),
        )
        slots_N = self._list_of(num, np.int64, may_be_late=True)
        kept = (*p.keys, p.meta, cutoffs_F, np.int64(len(cutoffs_F)), np.int64(start))
        num_1 = self._listed("scan", "expired", num, kept, (slots_N,))
        return slots_N if self._late else self._trim(num_1, slots_N)[0]

    def overflow_slots(self, store: Store, protect_from: int) -> Array:
        slots_N, num = self._list_of(store.num_overflow, np.int64), store.num_overflow
        kept = (*arrays_of(store).keys, np.int64(min(protect_from, 1 << TICK_BITS)))
        return self._trim(self._listed("scan", "overflow", num, kept, (slots_N,)), slots_N)[0]

    def lowest_scores(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        """1. Choose the threshold digit by digit. 2. List what is not above it. 3. Sort by mixed key, then by score."""
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
