from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from springtide.app.serving.lookup.neighbors import find_neighbors
from springtide.app.serving.model.served_view import WHOLE
from springtide_client.keys import INT64_MIN
from springtide_client.rows import nearest
from springtide_client.rows.row_block import RowBlock
from tests.support.layers import sorted_layer

FEATURE, DIM = 3, 8


class Layered:
    """A view of layers, newest first, answered by walking through them."""

    part = WHOLE

    def __init__(self, *layers: RowBlock, horizon_ms: int = INT64_MIN) -> None:
        self.layers, self._horizon_ms = layers, horizon_ms

        self.own_view = self.client_view = self

    def nearest(self, number, *arguments, **keywords):
        cutoff_ms = self._horizon_ms if number == FEATURE else INT64_MIN
        return nearest.find_nearest(self.layers, number, *arguments, cutoff_ms=cutoff_ms, **keywords)

    def rows(self) -> dict[int, np.ndarray]:
        """The living rows of the feature."""
        found: dict[int, tuple[np.ndarray, bool]] = {}
        for layer in self.layers:
            for place in np.flatnonzero(layer.feature == FEATURE):
                dead = layer.last_seen[place] < self._horizon_ms
                dead |= layer.tombstone is not None and bool(layer.tombstone[place])
                found.setdefault(int(layer.id[place]), (layer.value[place], bool(dead)))
        return {row_id: row for row_id, (row, dead) in found.items() if not dead}

    feature_numbers: ClassVar = {"feature": FEATURE}

    def dim_of(self, number):
        return DIM

    def lookup(self, numbers, ids):
        row = self.rows().get(int(ids[0]))
        if row is None:
            return np.full((1, DIM), np.nan, np.float32), np.array([1], np.uint8)
        return row[None], np.array([0], np.uint8)

    def id_texts(self, number, ids):
        return [None] * len(ids)


def layer(ids, rows, *, feature=FEATURE, seen=100, forgotten=()) -> RowBlock:
    ids = np.array(ids, np.int64)
    ones = np.ones(len(ids), np.int64)
    made = sorted_layer(np.full(len(ids), feature, np.uint16), ids, np.array(rows, np.float32), ones, ones * seen)
    return replace(made, tombstone=np.isin(made.id, forgotten)) if len(forgotten) else made


def joined(*layers: RowBlock) -> RowBlock:
    """One layer of several features."""
    return RowBlock.concatenate(layers).in_key_order()


def expected(rows: dict[int, np.ndarray], row_id: int, k: int, metric: str):
    query = rows[row_id].astype(np.float64)
    scores = {}
    for other, row in rows.items():
        row = row.astype(np.float64)
        if metric == "dot":
            scores[other] = row @ query
        elif metric == "euclidean":
            scores[other] = -np.sqrt(((row - query) ** 2).sum())
        else:
            scores[other] = row @ query / (np.linalg.norm(row) * np.linalg.norm(query))
    del scores[row_id]
    best = sorted(scores, key=lambda other: (-np.float32(scores[other]), other))[:k]
    return best, [scores[other] for other in best]


def ids_of(view, row_id: int, k: int, metric: str) -> list[int] | None:
    ranked = find_neighbors(view, FEATURE, row_id, k=k, metric=metric).ranked
    return None if ranked is None else ranked.ids_M.tolist()


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("k", [1, 10, 500])
def test_neighbors_equal_a_full_comparison_of_live_rows(monkeypatch, metric, chunk, k):
    monkeypatch.setattr(nearest, "CHUNK_ROWS", chunk)
    random = np.random.default_rng(0)

    def some_rows(number):
        return random.integers(-2, 3, (number, DIM)) * random.choice([0.5, 1.0, 3.0], (number, 1)) + 0.25  # many tie

    ids = random.permutation(200).astype(np.int64) - 50
    base = joined(layer(ids, some_rows(200)), layer(ids[:90], some_rows(90) * 9, feature=FEATURE + 1))
    older = layer(ids[:120], some_rows(120), forgotten=ids[30:60])  # hides near rows, and marks some
    newer = layer([*ids[50:70], 700, 701], some_rows(22), forgotten=[700])  # some come back
    view = Layered(newer, older, base)
    for row_id in (int(ids[3]), int(ids[60]), 701):
        found = find_neighbors(view, FEATURE, row_id, k=k, metric=metric).ranked
        best, scores = expected(view.rows(), row_id, k, metric)
        assert found.ids_M.tolist() == best
        np.testing.assert_allclose(found.scores_M, scores, rtol=1e-6, atol=1e-7)
    assert ids_of(view, int(ids[31]), k, metric) is None


def test_far_rows_are_found_if_all_near_ones_are_hidden():
    near = layer(range(1, 901), np.ones((900, DIM)))
    far = layer(range(1_000, 1_005), np.arange(5 * DIM).reshape(5, DIM) - 100.0)
    marks = layer(range(2, 901), np.zeros((899, DIM)), forgotten=np.arange(2, 901))
    view = Layered(marks, joined(near, far))
    assert ids_of(view, 1, 3, "dot") == [1_004, 1_003, 1_002]


def test_expired_rows_are_not_neighbors():
    view = Layered(layer([1, 2], np.ones((2, DIM)), seen=100), layer([3], np.ones((1, DIM)), seen=10), horizon_ms=50)
    ranked = find_neighbors(view, FEATURE, 1, k=5, metric="dot").ranked
    assert list(ranked.pairs()) == [(2, 8.0)]


def test_ties_are_ordered_by_id_for_any_chunk_size(monkeypatch):
    for chunk in (1, 2, 5, 64):
        monkeypatch.setattr(nearest, "CHUNK_ROWS", chunk)
        ids = [*range(100, 40, -1), 3, 7, 1, 5]
        row = np.random.default_rng(1).normal(size=DIM)
        assert ids_of(Layered(layer(ids, np.tile(row, (64, 1)))), 100, 3, "cosine") == [1, 3, 5]


def test_a_zero_row_has_similarity_0_and_a_nan_row_is_not_a_neighbor():
    rows = np.zeros((3, DIM))
    rows[1, 0], rows[2, 0] = 1, np.nan
    view = Layered(layer([1, 2, 3], rows))
    ranked = find_neighbors(view, FEATURE, 1, k=3, metric="cosine").ranked
    assert list(ranked.pairs()) == [(2, 0.0)]
    assert ids_of(view, 4, 3, "cosine") is None
