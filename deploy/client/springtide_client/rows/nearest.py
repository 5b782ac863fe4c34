"""The nearest rows of one feature to a vector: an exact search that compares all rows in place, a chunk at a time."""

# R rows of a chunk, M some of them, K the nearest, D dimension
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from springtide_client.array_types import BoolArray, Float32Array, Indices, Int64Array
from springtide_client.rows.row_block import RowBlock

METRICS = ("cosine", "dot", "euclidean")
CHUNK_ROWS = 65_536

# (rows, number of the feature, an id that is left out, query [D], metric) -> how near each row is [R]: larger is
# nearer, and -inf for rows of other features
Measure = Callable[[RowBlock, int, int, Float32Array, str], Float32Array]


def measure_nearness(rows: RowBlock, number: int, without_id: int, query_D: Float32Array, metric: str) -> Float32Array:
    """Return the cosine (0 beside a row of zeros), the dot product, or minus the distance, float32 (R)."""
    near_R = np.full(len(rows), -np.inf, np.float32)
    at_M = np.flatnonzero((rows.feature == number) & (rows.id != without_id))
    values_MD, query = rows.value[at_M].astype(np.float64), query_D.astype(np.float64)
    if metric == "euclidean":
        near_R[at_M] = -np.sqrt(((values_MD - query) ** 2).sum(axis=1))
        return near_R
    dots_M = values_MD @ query
    if metric == "cosine":
        scale_M = np.sqrt((values_MD**2).sum(axis=1) * (query @ query))
        dots_M = np.divide(dots_M, scale_M, out=np.zeros_like(dots_M), where=scale_M > 0)
    near_R[at_M] = dots_M
    return near_R


def find_nearest(
    layers: Sequence[RowBlock],
    number: int,
    without_id: int,
    query_D: Float32Array,
    *,
    cutoff_ms: int,
    k: int,
    metric: str,
    measure: Measure = measure_nearness,
) -> tuple[Int64Array, Float32Array]:
    """Return ids and nearness of the k nearest rows of a feature, nearest first; ties go to the lower id.

    `layers`: newest first; a row or tombstone hides its key in older ones. Rows last seen before `cutoff_ms` have
    expired.
    """
    top = TopK(k)
    for depth, layer in enumerate(layers):
        for start in range(0, len(layer), CHUNK_ROWS):
            rows = layer.take(slice(start, start + CHUNK_ROWS))
            near_R = measure(rows, number, without_id, query_D, metric)
            top.offer(rows.id, near_R, partial(_are_live, rows, layers[:depth], cutoff_ms))
    return top.ids_K, top.scores_K


def _are_live(rows: RowBlock, newer: Sequence[RowBlock], cutoff_ms: int, indices_M: Indices) -> BoolArray:
    some = rows.keys_only().take(indices_M)
    live_M: BoolArray = (some.last_seen >= cutoff_ms) & ~some.tombstones()
    for layer in newer:  # its row or tombstone of the same key hides this row
        live_M &= ~layer.holds(some)
    return live_M


class TopK:
    """The k nearest of all rows offered so far, nearest first; ties by id."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.ids_K: Int64Array = np.empty(0, np.int64)
        self.scores_K: Float32Array = np.empty(0, np.float32)

    @property
    def threshold(self) -> float:
        """A row with a lower score cannot be among them."""
        return float(self.scores_K[-1]) if len(self.scores_K) == self._k else -np.inf

    def offer(self, ids_R: Int64Array, scores_R: Float32Array, are_live: Callable[[Indices], BoolArray]) -> None:
        """Offer rows with their scores, ignoring -inf and NaN; `are_live` is asked only about rows near enough."""
        left_M = np.flatnonzero((scores_R >= self.threshold) & (scores_R > -np.inf))
        step = self._k
        while len(left_M):
            scores_M = scores_R[left_M]
            if len(left_M) > step:
                # all that tie with the last one come along, so that chunks do not decide between them
                chosen_M = scores_M >= np.partition(scores_M, len(scores_M) - step)[len(scores_M) - step]
            else:
                chosen_M = np.ones(len(left_M), np.bool_)
            chosen = left_M[chosen_M]
            chosen = chosen[are_live(chosen)]
            ids, scores = np.concatenate([self.ids_K, ids_R[chosen]]), np.concatenate([self.scores_K, scores_R[chosen]])
            order = np.lexsort((ids, -scores))[: self._k]
            self.ids_K, self.scores_K = ids[order], scores[order]
            left_M = left_M[~chosen_M & (scores_M >= self.threshold)]
            step *= 4
