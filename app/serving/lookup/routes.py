"""One row by GET, and its neighbors. (Many rows, by POST, are answered in lookup/handler.py.)"""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import ApiError, ErrorInfo, invalid, no_such_feature
from springtide.app.serving.http.preconditions import parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import PRECONDITIONS, VERSION_HEADER, Routes
from springtide.app.serving.lookup.batch_lookup import count_rows
from springtide.app.serving.lookup.codecs import Status, parse_ids
from springtide.app.serving.lookup.handler import BATCH_LOOKUP
from springtide.app.serving.lookup.neighbors import SIMILARITIES, Neighbors, find_neighbors
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.asking import at_one_version, forward_get
from springtide_client.keys import INT64_MAX, INT64_MIN, is_canonical_decimal
from springtide_client.model.view import STATUS_NAMES

routes = Routes("Embeddings")
routes.add_direct(BATCH_LOOKUP)

REASONS = {
    "unknown": "it was never learned from, or its row was evicted",
    "not_admitted": "it was seen too seldom for one",
    "forgotten": "it was erased, or has expired",
}
HINTS = {"not_admitted": "it uses a shared row of its feature until it was seen min_count times"}


Id = Annotated[
    int | str, msgspec.Meta(description="An integer or a string; a decimal string is the same id as its number.")
]


class RowResponse(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The row of an id."""

    feature: str
    id: Id
    status: Literal["known"] = "known"
    vector: list[float | None]
    count: Annotated[
        int, msgspec.Meta(description="Occurrences of the id in learned samples since the row was created.")
    ]
    last_seen_ms: int
    version: int


class AbsentRowResponse(msgspec.Struct, forbid_unknown_fields=True):
    """Why an id has no row, or that there is no such feature."""

    error: ErrorInfo
    feature: str | msgspec.UnsetType = msgspec.UNSET
    id: Id | msgspec.UnsetType = msgspec.UNSET
    status: Status | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET


class NeighborsResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The nearest rows, nearest first."""

    feature: str
    id: Id
    version: int
    metric: Literal["cosine", "dot", "euclidean"]
    neighbors: list["Neighbor"]


class Neighbor(msgspec.Struct, forbid_unknown_fields=True):
    """An id with its similarity or, for `euclidean`, its distance."""

    id: Id
    score: float | None


class LookupParts(NamedTuple):
    """The objects that the routes of this module use."""

    replica: Replica
    metrics: MetricsRegistry
    neighbor_pool: BoundedPool
    remote_pool: BoundedPool
    max_neighbors: int


ROW: dict[str, Any] = {
    "scope": "read",
    "response": RowResponse,
    "errors": (400, 404, 421, 422, 503),
    "headers": PRECONDITIONS,
    "response_headers": VERSION_HEADER,
    "not_found": AbsentRowResponse,
}


@routes.add("GET", "/v1/embeddings/{feature}", **ROW)
async def row_by_query(request: Request, feature: str, id: Annotated[str, Query()]) -> Response:
    """One row, for ids with slashes"""
    return await _row(request, feature, id)


@routes.add(
    "GET",
    "/v1/embeddings/{feature}/{id:path}/neighbors",
    scope="read",
    response=NeighborsResponse,
    errors=(400, 404, 422, 501, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
    not_found=AbsentRowResponse,
)
async def neighbors(
    request: Request,
    feature: str,
    id: str,
    k: Annotated[int, Query(ge=1)] = 10,
    metric: Annotated[str, Query()] = "cosine",
) -> JsonResponse:
    """Nearest rows of the same feature

    metric: cosine, dot or euclidean. Exact: every row of the feature is compared.
    """
    parts: LookupParts = request.app.state.lookup
    if metric not in SIMILARITIES:
        raise invalid(f"there is no metric {metric!r}", f"the metrics are {', '.join(SIMILARITIES)}")
    if k > parts.max_neighbors:
        raise invalid(f"k is beyond {parts.max_neighbors}", "ask for fewer")
    row_id, shown_id = parse_id(id)

    async def find(view: ServedView) -> tuple[ServedView, Neighbors]:
        view.part.check_knows_all("neighbors")
        number = _feature_number(view, feature)
        pool = parts.neighbor_pool if view.part.servers is None else parts.remote_pool
        return view, await pool.run(lambda: find_neighbors(view, number, row_id, k=k, metric=metric))

    view, found = await at_one_version(parts.replica, parse_preconditions(request.headers), find)
    headers = parts.replica.version_headers(view)
    count_rows(parts.metrics, found.status_1)
    if found.documents is None:
        raise _no_row(view, feature, shown_id, STATUS_NAMES[found.status_1[0]], headers)
    document = {
        "feature": feature,
        "id": shown_id,
        "version": view.version,
        "metric": metric,
        "neighbors": found.documents,
    }
    return JsonResponse(document, headers=headers)


@routes.add("GET", "/v1/embeddings/{feature}/{id:path}", **ROW)
async def row(request: Request, feature: str, id: str) -> Response:
    """One row"""
    return await _row(request, feature, id)


def parse_id(text: str) -> tuple[int, int | str]:
    """The id of a string in a URL, and the form in which responses show it: a decimal integer is a number."""
    row_id = int(parse_ids([text])[0])
    is_number = len(text) <= 20 and is_canonical_decimal(text) and INT64_MIN <= int(text) <= INT64_MAX
    return row_id, int(text) if is_number else text


async def _row(request: Request, feature: str, text: str) -> Response:
    parts: LookupParts = request.app.state.lookup
    view = parts.replica.view_satisfying(parse_preconditions(request.headers))
    headers = parts.replica.version_headers(view)
    number = _feature_number(view, feature)
    row_id, shown_id = parse_id(text)
    if (owner := view.part.owner_of(number, row_id)) is not None and view.part.servers is not None:
        servers, path = view.part.servers, request.scope["raw_path"].decode("latin-1")
        path, sent = f"{path}?{request.url.query}".removesuffix("?"), dict(request.headers)
        return await parts.remote_pool.run(lambda: forward_get(servers, owner, path, sent))
    view.part.check_owned(number, np.array([row_id], np.int64))
    rows_1D, status_1 = view.lookup(number, np.array([row_id], dtype=np.int64))
    count_rows(parts.metrics, status_1)
    if status_1[0] != 0:
        raise _no_row(view, feature, shown_id, STATUS_NAMES[status_1[0]], headers)
    count, last_seen_ms = view.row_info(number, row_id)
    found = RowResponse(
        feature=feature,
        id=shown_id,
        vector=rows_1D[0].tolist(),
        count=count,
        last_seen_ms=last_seen_ms,
        version=view.version,
    )
    return JsonResponse(found, headers=headers)


def _feature_number(view: ServedView, feature: str) -> int:
    try:
        number: int = view.schema.number(feature)
    except KeyError:
        raise no_such_feature(feature, view.schema.features) from None
    return number


def _no_row(view: ServedView, feature: str, shown_id: int | str, status: str, headers: dict[str, str]) -> ApiError:
    return ApiError(
        404,
        status,
        f"{feature} {shown_id} has no row: {REASONS.get(status, status)}",
        HINTS.get(status, "a row is created when the id is first learned from"),
        headers=headers,
        siblings={"feature": feature, "id": shown_id, "status": status, "version": view.version},
    )
