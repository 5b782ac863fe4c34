import numpy as np
import pytest

from app.serving.neighbors import find_neighbors


class Rows:
    """A view of one feature, scanned in small chunks."""

    def __init__(self, ids, rows, chunk):
        self.ids, self.rows, self.chunk = ids, rows, chunk

    def lookup(self, number, ids):
        place = np.flatnonzero(self.ids == ids[0])
        if len(place) == 0:
            return np.full((1, self.rows.shape[1]), np.nan, np.float32), np.array([1], np.uint8)
        return self.rows[place], np.array([0], np.uint8)

    def scan(self, number):
        for start in range(0, len(self.ids), self.chunk):
            yield self.ids[start : start + self.chunk], self.rows[start : start + self.chunk]

    def names(self, number, ids):
        return ids.tolist()


def expected(rows, query, metric):
    rows, query = rows.astype(np.float64), query.astype(np.float64)
    if metric == "dot":
        return rows @ query
    if metric == "euclidean":
        return -np.sqrt(((rows - query) ** 2).sum(1))
    return rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_nearest_rows_are_those_of_a_full_comparison(metric, chunk):
    random = np.random.default_rng(0)
    ids = random.permutation(200).astype(np.int64) - 50
    rows = random.normal(size=(200, 8)).astype(np.float32)
    found = find_neighbors(Rows(ids, rows, chunk), 0, int(ids[3]), k=10, metric=metric)
    nearness = expected(rows, rows[3], metric)
    order = [place for place in np.argsort(-nearness) if place != 3][:10]
    assert [neighbor["id"] for neighbor in found] == ids[order].tolist()
    scores = -nearness[order] if metric == "euclidean" else nearness[order]
    np.testing.assert_allclose([neighbor["score"] for neighbor in found], scores, rtol=1e-5)


def test_equal_rows_come_by_their_ids_whatever_the_chunks():
    ids = np.array([9, 3, 7, 1, 5], np.int64)
    rows = np.ones((5, 2), np.float32)
    for chunk in (1, 2, 5):
        found = find_neighbors(Rows(ids, rows, chunk), 0, 9, k=3, metric="cosine")
        assert [neighbor["id"] for neighbor in found] == [1, 3, 5]


def test_a_row_of_zeros_is_near_to_nothing_and_an_absent_one_has_no_neighbors():
    view = Rows(np.array([1, 2], np.int64), np.array([[0, 0], [1, 0]], np.float32), 10)
    assert find_neighbors(view, 0, 1, k=3, metric="cosine") == [{"id": 2, "score": 0.0}]
    assert find_neighbors(view, 0, 4, k=3, metric="cosine") is None
