"""A store with the rows of a few keys, and the same rows in the oracle: what tests of rows and updates begin with."""

import itertools
from typing import Any

import numpy as np

from springtide.kernels.backend import backend
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import InsertResult, OptimizerStep, RowLayout
from tests.kernels.oracle import Key, Row

OPS = backend()
SEED, SCALE = 9, 0.1


def arrays(keys: list[Key]) -> tuple[Any, Any]:
    return np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)


def insert(store: Any, keys: list[Key], tick: int = 1, protect_from: int = 1) -> InsertResult:
    """The keys' slots, made if need be, and who left them."""
    features, ids = arrays(keys)
    return OPS.find_or_insert(store, features, ids, OPS.hash_keys(features, ids), tick, protect_from)


def found(store: Any, keys: list[Key]) -> Any:
    """The keys' slots, NO_SLOT where they have none."""
    features, ids = arrays(keys)
    return OPS.find(store, features, ids, OPS.hash_keys(features, ids))


def keys_of(store: Any, slots: Any) -> list[Key]:
    features, ids = OPS.keys_of(store, slots)
    return list(zip(features.tolist(), ids.tolist(), strict=True))


class SmallBatch:
    """Occurrences of keys, their rows in a store, and the oracle's rows."""

    def __init__(
        self, keys: list[Key], times: Any, *, dim: int, name: str, dtype: str = "float32", wide: int = 0
    ) -> None:
        self.unique = OPS.unique(*arrays(keys), np.asarray(times, np.int64))
        width = OPTIMIZERS[name].state_width(dim) + wide
        self.store = OPS.allocate(WIDTH * 2, 64, RowLayout(dim, width, dtype, wide))  # so small that some rows overflow
        names = list(zip(self.unique.features_U.tolist(), self.unique.ids_U.tolist(), strict=True))
        self.slots = insert(self.store, names).slots_U
        OPS.create(self.store, self.slots, self.unique.features_U, self.unique.ids_U, SEED, SCALE)
        self.rows = [Row(key, dim=dim, seed=SEED, scale=SCALE, dtype=dtype, width=width) for key in names]
        self.order, self.offsets = OPS.group(self.unique.inverse_K, self.unique.occurrences_U)

    def update(
        self,
        grads: Any,
        step: OptimizerStep,
        *,
        parts: int = 1,
        bags: Any = None,
        scales: Any = None,
        count_priority: bool = False,
    ) -> tuple[list[int], int]:
        """The verb in so many ranges, and the oracle: slots first touched, gradients refused."""
        bounds = [len(self.slots) * part // parts for part in range(parts + 1)]
        fresh, refused = [], 0
        times = self.unique.last_seen_U
        for start, stop in itertools.pairwise(bounds):
            new, bad = OPS.update(
                self.store,
                self.slots,
                self.order,
                self.offsets,
                grads,
                times,
                step,
                count_priority,
                start,
                stop,
                bags_K=bags,
                scales_K=scales,
            )
            fresh += new.tolist()
            refused += bad
        for u, row in enumerate(self.rows):
            occurrences = np.flatnonzero(self.unique.inverse_K == u)
            sources = occurrences if bags is None else bags[occurrences]
            factors = np.ones(len(sources), np.float32) if scales is None else scales[occurrences]
            row.update([grads[b] * f for b, f in zip(sources, factors, strict=True)], int(times[u]), step)
        return fresh, refused

    def check(self) -> None:
        """Store and oracle have the same rows, bit by bit."""
        columns = OPS.read(self.store, self.slots)
        for u, row in enumerate(self.rows):
            np.testing.assert_array_equal(columns.values_ND[u], row.value)
            np.testing.assert_array_equal(columns.states_NS[u], row.states)
            assert columns.counts_N[u] == row.count
            assert columns.last_seen_N[u] == row.last_seen
