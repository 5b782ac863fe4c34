"""Nearest rows of one feature: an exact search that compares all rows in place, a chunk at a time."""

# R rows of a chunk, M some of them, D dimension
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from springtide_client.rows.row_layer import RowLayer

from app.serving.model.view import IdArray, ModelView, RowArray
from kernels.cpu.serving.nearest_neighbors import COSINE, DOT, EUCLIDEAN, measure_nearness

SIMILARITIES = {"cosine": COSINE, "dot": DOT, "euclidean": EUCLIDEAN}
CHUNK_ROWS = 65_536

Indices = npt.NDArray[np.intp]
LiveMask = npt.NDArray[np.bool_]


def find_neighbors(view: ModelView, number: int, row_id: int, *, k: int, metric: str) -> list[dict[str, Any]] | None:
    """Find the k nearest other rows, nearest first, as {"id", "score"}; None if the id has no row.

    A larger score is nearer for `cosine` and `dot`; for `euclidean` it is the distance. Ties go to the lower id.
    """
    rows_1D, status_1 = view.lookup(number, np.array([row_id], dtype=np.int64))
    if status_1[0] != 0:
        return None
    top = TopK(k)
    layers, cutoff_ms = view.layers_of(number), view.expiry_cutoff_ms(number)
    for depth, layer in enumerate(layers):
        for start in range(0, len(layer), CHUNK_ROWS):
            rows = layer.take(slice(start, start + CHUNK_ROWS))
            scores_R = measure_similarity(rows, number, row_id, rows_1D[0], metric)
            top.offer(rows.id, scores_R, partial(_are_live, rows, layers[:depth], cutoff_ms))
    scores = -top.scores_K if metric == "euclidean" else top.scores_K
    names = view.display_ids(number, top.ids_K)
    return [{"id": name, "score": score} for name, score in zip(names, scores.tolist(), strict=True)]


def measure_similarity(rows: RowLayer, number: int, excluded_id: int, query_D: RowArray, metric: str) -> RowArray:
    """The similarity [R] of each row to the query, larger is nearer; -inf for other features and `excluded_id`."""
    scores_R = np.empty(len(rows), np.float32)
    columns = (_read_only(column) for column in (rows.value, rows.feature, rows.id))
    measure_nearness(*columns, number, excluded_id, query_D, SIMILARITIES[metric], scores_R)
    return scores_R


def _are_live(rows: RowLayer, newer: Sequence[RowLayer], cutoff_ms: int, indices_M: Indices) -> LiveMask:
    live_M: LiveMask = rows.last_seen[indices_M] >= cutoff_ms
    if rows.tombstone is not None:
        live_M &= ~rows.tombstone[indices_M]
    for layer in newer:  # its row or tombstone of the same key hides this row
        live_M &= layer.find_mixed(rows.mixed[indices_M], rows.feature[indices_M]) < 0
    return live_M


class TopK:
    """The k nearest of all rows offered so far, nearest first; ties by id."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.ids_K: IdArray = np.empty(0, np.int64)
        self.scores_K: RowArray = np.empty(0, np.float32)

    @property
    def threshold(self) -> float:
        """A row with a lower score cannot be among them."""
        return float(self.scores_K[-1]) if len(self.scores_K) == self._k else -np.inf

    def offer(self, ids_R: IdArray, scores_R: RowArray, are_live: Callable[[Indices], LiveMask]) -> None:
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


def _read_only(column: Any) -> Any:
    """A read-only view, as mapped arrays are: the kernel is compiled for one type."""
    view = column.view()
    view.flags.writeable = False
    return view
