"""Nearest rows of one feature: an exact search over all rows of this server, and over those of other servers."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.serving.http.errors import bad_request
from springtide.app.serving.model.served_view import ServedView, feature_column
from springtide.kernels.cpu.serving.nearest_neighbors import COSINE, DOT, EUCLIDEAN, measure_nearness
from springtide_client.array_types import Float32Array
from springtide_client.parts.rankings import NeighborsRequest, RankedIds, ask_rankings
from springtide_client.rows.row_block import RowBlock

SIMILARITIES = {"cosine": COSINE, "dot": DOT, "euclidean": EUCLIDEAN}


class Neighbors(NamedTuple):
    """The neighbors, None if the id has no row; and the status of the id."""

    ranked: RankedIds | None
    status_1: npt.NDArray[np.uint8]


def find_neighbors(view: ServedView, number: int, row_id: int, *, k: int, metric: str) -> Neighbors:
    """Find the k nearest other rows, nearest first.

    A larger score is nearer; for `euclidean` it is the distance, negative. Ties go to the lower id.
    PartError where other servers hold rows and do not give them.
    """
    part = view.part
    rows_1D, status_1 = view.client_view.lookup(feature_column(number), np.array([row_id], np.int64))
    if status_1[0] != 0:
        return Neighbors(None, status_1)
    request = NeighborsRequest(number, row_id, k, metric, rows_1D[0].astype("<f4", copy=False).tobytes())
    rank_own = partial(rank_neighbors, view, request)
    if part.servers is None:
        ranked = rank_own()
    else:
        ranked = ask_rankings(part.servers, view.own_view.head, request, part.hash_range, rank_own)
    return Neighbors(ranked, status_1)


def rank_neighbors(view: ServedView, request: NeighborsRequest) -> RankedIds:
    """Find the nearest of this server's rows; ApiError 400 for what cannot be compared with them."""
    number, dims = request.number, {number: view.dim_of(number) for number in view.feature_numbers.values()}
    if request.metric not in SIMILARITIES or len(request.query) != 4 * dims.get(number, -1):
        raise bad_request("not a request for neighbors: another feature, metric or length of rows")
    ids_K, scores_K = view.own_view.nearest(
        number, request.without_id, request.query_D, k=request.k, metric=request.metric, measure=measure_similarity
    )
    return RankedIds(ids_K, scores_K, view.id_texts(number, ids_K))


def measure_similarity(
    rows: RowBlock, number: int, excluded_id: int, query_D: Float32Array, metric: str
) -> Float32Array:
    """The similarity [R] of each row to the query, larger is nearer; -inf for other features and `excluded_id`."""
    scores_R = np.empty(len(rows), np.float32)
    columns = (_read_only(column) for column in (rows.value, rows.feature, rows.id))
    measure_nearness(*columns, number, excluded_id, query_D, SIMILARITIES[metric], scores_R)
    return scores_R


def _read_only(column: Any) -> Any:
    """A read-only view, as mapped arrays are: the kernel is compiled for one type."""
    view = column.view()
    view.flags.writeable = False
    return view
