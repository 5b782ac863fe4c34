"""Small tables for tests, and one-line calls of them."""

from typing import Any

import numpy as np

from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops

DIM = 4
BUCKET = Capacity.of_rows(1)  # rounded up to one bucket


def make(
    capacity: Capacity | None = BUCKET, spill: Any = None, *, device: str | Ops = "cpu", **settings: Any
) -> EmbeddingTable:
    return EmbeddingTable(TableConfig(dim=DIM, **settings), seed=0, spill=spill, capacity=capacity, device=device)


def learn(table: EmbeddingTable, ids: Any, feature: int = 0, at_ms: int = 1000, scores: Any = None) -> None:
    ids_K = np.asarray(ids, np.int64)
    features_K, times_K = np.full(len(ids_K), feature, np.uint16), np.full(len(ids_K), at_ms, np.int64)
    scores_K = None if scores is None else np.asarray(scores, np.float32)
    table.update(table.lookup(features_K, ids_K, times_K, scores_K=scores_K), np.ones((len(ids_K), DIM), np.float32))


def status(table: EmbeddingTable, ids: Any, feature: int = 0) -> list[int]:
    ids_K = np.asarray(ids, np.int64)
    found: list[int] = table.find(np.full(len(ids_K), feature, np.uint16), ids_K)[1].tolist()
    table.check_integrity()
    return found
