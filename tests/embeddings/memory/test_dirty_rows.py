"""What a delta contains, and in which order."""

from typing import Any

import numpy as np
import pytest

from springtide.embeddings import components
from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.rows import TableDelta
from springtide.embeddings.table import EmbeddingTable
from springtide_client.keys import hash_keys


def learn(table: EmbeddingTable, ids_K: Any) -> None:
    features_K, times_K = (ids_K % 3).astype(np.uint16), np.full(len(ids_K), 2000)
    gradients_KD = np.sin(np.arange(4 * len(ids_K), dtype=np.float32)).reshape(-1, 4)
    table.update(table.lookup(features_K, ids_K, times_K), gradients_KD)


def columns_of(delta: TableDelta) -> list[Any]:
    return [*delta.rows.columns().values(), delta.forgotten.feature, delta.forgotten.id]


def test_a_delta_taken_by_several_threads_equals_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "MIN_SPLIT_KEYS", 8)
    capacity = Capacity(num_slots=64, num_overflow=256, num_evicted_dirty=100_000)
    tables = [
        EmbeddingTable(TableConfig(dim=4, device_bytes=1 << 20, num_threads=threads), seed=0, capacity=capacity)
        for threads in (1, 3)
    ]
    random = np.random.default_rng(0)
    for number in range(12):
        with_overflow = number % 3 == 2
        batches = [random.integers(0, 300, random.integers(1, 90)) for _ in range(4)]
        deltas = []
        for table in tables:
            if with_overflow:  # while a lookup is open, rows without a slot stay in the overflow area
                pinned = table.lookup(np.zeros(1, np.uint16), np.zeros(1, np.int64), np.full(1, 2000))
            for ids_K in batches:
                learn(table, ids_K)
            in_overflow = max(table.dirty_rows.slots()) >= table.memory.store.num_slots
            deltas.append(table.take_delta())
            if with_overflow:
                assert in_overflow
                pinned.release()
            table.check_integrity()
        for one, shared in zip(*map(columns_of, deltas), strict=True):
            np.testing.assert_array_equal(one, shared)
        keys = set(zip(deltas[1].rows.feature.tolist(), deltas[1].rows.id.tolist(), strict=True))
        assert len(keys) == len(deltas[1].rows) > 0
    for table in tables:
        table.close()


def test_resident_rows_are_in_the_order_of_key_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "MIN_SPLIT_KEYS", 8)
    table = EmbeddingTable(TableConfig(dim=4, device_bytes=1 << 20, num_threads=2), seed=0)
    for _ in range(2):
        learn(table, np.arange(1000))
    delta = table.take_delta()
    key_hash_N = hash_keys(delta.rows.feature, delta.rows.id)
    assert len(delta.rows) == 1000
    assert (key_hash_N[1:] > key_hash_N[:-1]).all()
    assert len(table.take_delta().rows) == 0
    table.close()
