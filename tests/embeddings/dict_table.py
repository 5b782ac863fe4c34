"""A reference table: a dictionary without tiers, capacity and eviction."""

# K keys of a batch, D dimension
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import OptimizerStep
from springtide_client.keys import SHARED_ROW_OFFSET
from tests.kernels.oracle import Key, Row, Sketch, key_hash, unique

DIM, SEED, SCALE = 4, 5, 0.1
SKETCH_BLOCKS = 4


def arrays(keys: list[Key]) -> tuple[Any, Any]:
    return np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)


class Taken(NamedTuple):
    """A batch's rows by key, the times of its keys, and what admission counts once it is learned."""

    keys: list[Key]
    times: list[int]
    counted: list[tuple[Key, int]]


class DictTable:
    """Rows by key, keys dirty or forgotten since the last delta, expiry cutoffs, counts of keys without a row."""

    def __init__(
        self, step: OptimizerStep, dtype: str = "float32", min_counts: Mapping[int, int] | None = None, wide: int = 0
    ) -> None:
        self.step, self.dtype, self.wide = step, dtype, wide
        self.rows: dict[Key, Row] = {}
        self.dirty: set[Key] = set()
        self.forgotten: set[Key] = set()
        self.cutoffs: dict[int, int] = {}
        self.min_counts = dict(min_counts or {})
        self.sketch, self.age = Sketch(SKETCH_BLOCKS), 0

    def lookup(self, keys: list[Key], times: list[int], rowless_key_hash: Sequence[int] | None) -> "Taken":
        """The keys whose rows the batch uses: its own, or the shared ones of their features.

        `rowless_key_hash`: what the table found no row for, which may have dropped rows that were never learned.
        """
        for key in set(keys) & self.rows.keys():
            if self.rows[key].count == 0 and rowless_key_hash is not None and key_hash(key) in rowless_key_hash:
                del self.rows[key]
        names, inverse, occurrences, _ = unique(keys, times)
        rowless = [u for u, key in enumerate(names) if not self.is_alive(key)]
        taken = list(names)
        for u in rowless:
            feature = names[u][0]
            seen = self.sketch.estimate(key_hash(names[u]), self.age) + occurrences[u]
            if seen < self.min_counts.get(feature, 1):
                taken[u] = (feature + SHARED_ROW_OFFSET, 0)
        for key in taken:
            if not self.is_alive(key):
                self.rows[key] = self.new_row(key)
                self.dirty.discard(key)
        counted = [(names[u], occurrences[u]) for u in rowless if self.min_counts.get(names[u][0], 1) > 1]
        return Taken([taken[u] for u in inverse], times, counted)

    def new_row(self, key: Key) -> Row:
        width = OPTIMIZERS[self.step.name].state_width(DIM) + self.wide
        return Row(key, dim=DIM, seed=SEED, scale=SCALE, dtype=self.dtype, width=width)

    def is_alive(self, key: Key) -> bool:
        return key in self.rows and self.rows[key].last_seen >= self.cutoffs.get(key[0], 0)

    def was_seen(self, key: Key) -> bool:
        """Return True if a key without a row was seen, but not often enough."""
        return self.min_counts.get(key[0], 1) > 1 and self.sketch.estimate(key_hash(key), self.age) > 0

    def update(self, taken: "Taken", grads_KD: Any) -> None:
        self.count(taken)
        names, inverse, _, newest = unique(taken.keys, taken.times)
        for u, key in enumerate(names):
            if key in self.rows:  # else it was forgotten after its lookup
                grads = [grads_KD[k] for k, v in enumerate(inverse) if v == u]
                self.rows[key].update(grads, max(newest[u], self.cutoffs.get(key[0], 0)), self.step)
                self.dirty.add(key)
                self.forgotten.discard(key)

    def touch(self, taken: "Taken") -> None:
        self.count(taken)
        names, _, occurrences, newest = unique(taken.keys, taken.times)
        for key, num, time in zip(names, occurrences, newest, strict=True):
            if key in self.rows:
                self.rows[key].touch(num, max(time, self.cutoffs.get(key[0], 0)))
                self.dirty.add(key)
                self.forgotten.discard(key)

    def count(self, taken: "Taken") -> None:
        for key, num in taken.counted:
            self.sketch.add(key_hash(key), num, self.age)

    def forget(self, keys: list[Key]) -> None:
        for key in keys:
            self.rows.pop(key, None)
            self.dirty.discard(key)
            self.forgotten.add(key)

    def raise_cutoff(self, feature: int, ms: int) -> None:
        self.cutoffs[feature] = max(self.cutoffs.get(feature, 0), ms)

    def write(self, key: Key, row: Row) -> None:
        self.rows[key] = row
        self.dirty.add(key)
        self.forgotten.discard(key)
