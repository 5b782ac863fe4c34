"""Quotas: how many rows of memory a feature may have in a table that it shares with other features."""

# N rows, F features
from collections.abc import Mapping

import numpy as np

from springtide.embeddings.config import FeaturePolicy
from springtide.embeddings.rows import Int64Array, UInt16Array

PART = 16  # a feature over its quota is cut back by this part of it, so that not every batch has to evict
SLACK = 1024  # and only once it exceeds it by this part of the table's slots, because evicting scans all of them


class Quotas:
    """Counts the rows of each feature while any feature has a quota. False while none has."""

    def __init__(self, features: Mapping[int, FeaturePolicy], slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._quotas = {f: p.quota_bytes for f, p in features.items() if p.quota_bytes is not None}
        self.rows_F: Int64Array = np.zeros(0, np.int64)

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def set_limits(self, quotas: Mapping[int, int | None], present_N: UInt16Array) -> None:
        """Change quotas; None removes one. `present_N` are the features of all rows in memory."""
        for feature, quota in quotas.items():
            self._quotas.pop(feature, None)
            if quota is not None:
                self._quotas[feature] = quota
        self.rows_F = np.bincount(present_N).astype(np.int64)

    def add(self, features_N: UInt16Array) -> None:
        """Count rows that were inserted."""
        self._count(features_N, 1)

    def remove(self, features_N: UInt16Array) -> None:
        """Count rows that left memory."""
        self._count(features_N, -1)

    def excess(self, num_slots: int) -> dict[int, int]:
        """Feature -> the number of its rows to evict from a table of this many slots."""
        excess = {}
        for feature, quota in self._quotas.items():
            allowed = quota // self.slot_bytes
            present = int(self.rows_F[feature]) if feature < len(self.rows_F) else 0
            if present > allowed + num_slots // SLACK:
                excess[feature] = present - (allowed - allowed // PART)
        return excess

    def max_evictions(self, num_slots: int) -> int:
        """The most rows that quotas may evict after a batch, beyond as many as the batch inserts."""
        return sum(quota // self.slot_bytes // PART + num_slots // SLACK for quota in self._quotas.values())

    def _count(self, features_N: UInt16Array, sign: int) -> None:
        if not self._quotas or not len(features_N):
            return
        counts_F = np.bincount(features_N)
        if len(counts_F) > len(self.rows_F):
            self.rows_F = np.concatenate([self.rows_F, np.zeros(len(counts_F) - len(self.rows_F), np.int64)])
        self.rows_F[: len(counts_F)] += sign * counts_F
