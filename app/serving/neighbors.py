"""Nearest rows of one feature: exact, by comparing with all of them, a chunk at a time."""

# R rows of a chunk, D dimension
from typing import Any

import numpy as np
import numpy.typing as npt

from app.serving.model_view import ModelView

METRICS = ("cosine", "dot", "euclidean")


def find_neighbors(view: ModelView, number: int, row_id: int, *, k: int, metric: str) -> list[dict[str, Any]] | None:
    """The k nearest other rows, nearest first, as {"id", "score"}; None where the id has no row.

    The score of `cosine` and `dot` grows with nearness, that of `euclidean` is the distance. Ties go to the lower id.
    """
    rows_1D, status_1 = view.lookup(number, np.array([row_id], dtype=np.int64))
    if status_1[0] != 0:
        return None
    query_D = rows_1D[0]
    best_ids = np.empty(0, dtype=np.int64)
    best_nearness = np.empty(0, dtype=np.float32)
    for ids_R, rows_RD in view.scan(number):
        others = ids_R != row_id
        ids = np.concatenate([best_ids, ids_R[others]])
        nearness = np.concatenate([best_nearness, nearness_of(query_D, rows_RD, metric)[others]])
        if len(ids) > k:
            # all that tie with the k-th stay for the ordering below, so that chunks do not decide between them
            threshold = np.partition(nearness, len(nearness) - k)[len(nearness) - k]
            kept = nearness >= threshold
            ids, nearness = ids[kept], nearness[kept]
        order = np.lexsort((ids, -nearness))[:k]
        best_ids, best_nearness = ids[order], nearness[order]
    scores = -best_nearness if metric == "euclidean" else best_nearness
    names = view.names(number, best_ids)
    return [{"id": name, "score": score} for name, score in zip(names, scores.tolist(), strict=True)]


def nearness_of(
    query_D: npt.NDArray[np.float32], rows_RD: npt.NDArray[np.float32], metric: str
) -> npt.NDArray[np.float32]:
    """How near each row is, larger is nearer; a row of zeros has cosine 0."""
    if metric == "euclidean":
        distances: npt.NDArray[np.float32] = np.linalg.norm(rows_RD - query_D, axis=1).astype(np.float32)
        return -distances
    dots: npt.NDArray[np.float32] = np.einsum("rd,d->r", rows_RD, query_D)
    if metric == "dot":
        return dots
    lengths = np.linalg.norm(rows_RD, axis=1) * np.linalg.norm(query_D)
    cosines = np.zeros_like(dots)
    np.divide(dots, lengths, out=cosines, where=lengths > 0)
    return cosines
