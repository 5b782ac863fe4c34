"""A table as a dictionary: no tiers, no capacity, nothing ever leaves. What every schedule is compared with."""

# K keys of a batch, D dimension
from typing import Any

import numpy as np

from kernels.spec import Step
from tests.kernels.oracle import Key, Row, unique

DIM, SEED, SCALE, LR, EPS = 4, 5, 0.1, 0.5, 1e-8
STEP = Step("rowwise-adagrad", LR, EPS)


def arrays(keys: list[Key]) -> tuple[Any, Any]:
    return np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)


class DictTable:
    """Rows by key; which were touched or forgotten since the last cut."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.touched: set[Key] = set()
        self.forgotten: set[Key] = set()

    def row(self, key: Key) -> Row:
        if key not in self.rows:
            self.rows[key] = Row(key, dim=DIM, seed=SEED, scale=SCALE)
        return self.rows[key]

    def update(self, keys: list[Key], times: list[int], grads_KD: Any) -> None:
        names, inverse, _, newest = unique(keys, times)
        for u, key in enumerate(names):
            if key in self.rows:  # else it was forgotten after its lookup
                grads = [grads_KD[k] for k, v in enumerate(inverse) if v == u]
                self.rows[key].update(grads, newest[u], STEP)
                self.touched.add(key)
                self.forgotten.discard(key)

    def forget(self, keys: list[Key]) -> None:
        for key in keys:
            self.rows.pop(key, None)
            self.touched.discard(key)
            self.forgotten.add(key)
