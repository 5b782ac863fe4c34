"""Nearest rows of one feature: exact, by comparing with all of them where they lie, a chunk at a time."""

# R rows of a chunk, M some of them, D dimension
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from springtide_client.rows.layers import RowLayer

from app.serving.model.view import IdArray, ModelView, RowArray
from kernels.cpu.serving.nearest_neighbors import COSINE, DOT, EUCLIDEAN, measure_nearness

SIMILARITIES = {"cosine": COSINE, "dot": DOT, "euclidean": EUCLIDEAN}
CHUNK_ROWS = 65_536

Places = npt.NDArray[np.intp]
Alive = npt.NDArray[np.bool_]


def find_neighbors(view: ModelView, number: int, row_id: int, *, k: int, metric: str) -> list[dict[str, Any]] | None:
    """The k nearest other rows, nearest first, as {"id", "score"}; None where the id has no row.

    The score of `cosine` and `dot` grows with nearness, that of `euclidean` is the distance. Ties go to the lower id.
    """
    rows_1D, status_1 = view.lookup(number, np.array([row_id], dtype=np.int64))
    if status_1[0] != 0:
        return None
    nearest = TopK(k)
    layers, horizon_ms = view.layers, view.expiry_cutoff_ms(number)
    for depth, layer in enumerate(layers):
        for start in range(0, len(layer), CHUNK_ROWS):
            rows = layer.take(slice(start, start + CHUNK_ROWS))
            near_R = measure_similarity(rows, number, row_id, rows_1D[0], metric)
            nearest.offer(rows.id, near_R, partial(_are_alive, rows, layers[:depth], horizon_ms))
    scores = -nearest.scores_K if metric == "euclidean" else nearest.scores_K
    names = view.display_ids(number, nearest.ids_K)
    return [{"id": name, "score": score} for name, score in zip(names, scores.tolist(), strict=True)]


def measure_similarity(rows: RowLayer, number: int, without_id: int, query_D: RowArray, metric: str) -> RowArray:
    """How near each row is, larger is nearer; minus infinity for other features and `without_id`."""
    near_R = np.empty(len(rows), np.float32)
    columns = (_read_only(column) for column in (rows.value, rows.feature, rows.id))
    measure_nearness(*columns, number, without_id, query_D, SIMILARITIES[metric], near_R)
    return near_R


def _are_alive(rows: RowLayer, newer: Sequence[RowLayer], horizon_ms: int, places_M: Places) -> Alive:
    alive_M: Alive = rows.last_seen[places_M] >= horizon_ms
    if rows.forgotten is not None:
        alive_M &= ~rows.forgotten[places_M]
    for layer in newer:  # what it has of a key, row or mark, hides this one
        alive_M &= layer.find_mixed(rows.mixed[places_M], rows.feature[places_M]) < 0
    return alive_M


class TopK:
    """The k nearest of all that were offered, nearest first; ties by id."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.ids_K: IdArray = np.empty(0, np.int64)
        self.scores_K: RowArray = np.empty(0, np.float32)

    @property
    def threshold(self) -> float:
        """What is less near than this cannot be among them."""
        return float(self.scores_K[-1]) if len(self.scores_K) == self._k else -np.inf

    def offer(self, ids_R: IdArray, near_R: RowArray, are_alive: Callable[[Places], Alive]) -> None:
        """Rows with their nearness; minus infinity and NaN are none. Whether they are alive is asked of near ones."""
        left_M = np.flatnonzero((near_R >= self.threshold) & (near_R > -np.inf))
        step = self._k
        while len(left_M):
            near_M = near_R[left_M]
            if len(left_M) > step:
                # all that tie with the last one come along, so that chunks do not decide between them
                chosen_M = near_M >= np.partition(near_M, len(near_M) - step)[len(near_M) - step]
            else:
                chosen_M = np.ones(len(left_M), np.bool_)
            chosen = left_M[chosen_M]
            chosen = chosen[are_alive(chosen)]
            ids, near = np.concatenate([self.ids_K, ids_R[chosen]]), np.concatenate([self.scores_K, near_R[chosen]])
            order = np.lexsort((ids, -near))[: self._k]
            self.ids_K, self.scores_K = ids[order], near[order]
            left_M = left_M[~chosen_M & (near_M >= self.threshold)]
            step *= 4


def _read_only(column: Any) -> Any:
    """The same array as mapped ones are: one type for the compiler."""
    view = column.view()
    view.flags.writeable = False
    return view
