"""Rows: one by GET, its neighbors, and many by POST."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool, Pools
from springtide.app.serving.http.errors import ApiError, ErrorInfo, invalid, no_such_feature
from springtide.app.serving.http.preconditions import MAX_STALENESS, MIN_VERSION, parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import (
    ARROW,
    BINARY,
    JSON,
    MSGPACK,
    PRECONDITIONS,
    RAW,
    VERSION_HEADER,
    Routes,
)
from springtide.app.serving.lookup.batch_lookup import (
    LookupOptions,
    feature_number,
    is_small,
    look_up,
    response_headers,
)
from springtide.app.serving.lookup.codecs import (
    LookupBody,
    LookupResponse,
    PackedLookupResponse,
    Status,
    decode_request,
)
from springtide.app.serving.lookup.neighbors import SIMILARITIES, Neighbors, find_neighbors, rank_neighbors
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.routes import answer_question
from springtide_client.array_types import UInt8Array
from springtide_client.errors import PartError
from springtide_client.keys import encode_id
from springtide_client.model.view import STATUS_NAMES
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.rankings import NEIGHBORS_ROUTE, NeighborsRequest
from springtide_client.rows.nearest import METRICS

routes = Routes("Embeddings")
# a longer body is decoded by a thread
INLINE_BYTES = 65_536

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
    status: Literal["known"]
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
    metric: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(METRICS)})]
    neighbors: list["Neighbor"]


class Neighbor(msgspec.Struct, forbid_unknown_fields=True):
    """An id with its similarity or, for `euclidean`, its distance."""

    id: Id
    score: float | None


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
    state = request.app.state
    replica: Replica = state.replica
    pools: Pools = state.pools
    if metric not in SIMILARITIES:
        raise invalid(f"there is no metric {metric!r}", f"the metrics are {', '.join(SIMILARITIES)}")
    if k > state.config.max_neighbors:
        raise invalid(f"k is beyond {state.config.max_neighbors}", "ask for fewer")
    row_id, shown_id = parse_id(id)

    async def find(view: ServedView) -> tuple[ServedView, Neighbors]:
        view.part.check_knows_all("neighbors")
        number = _feature_number(view, feature)
        pool = pools.neighbors if view.part.servers is None else pools.remote
        return view, await pool.run(lambda: find_neighbors(view, number, row_id, k=k, metric=metric))

    view, found = await replica.at_one_version(parse_preconditions(request.headers), find)
    headers = replica.version_headers(view)
    state.row_counts.add(found.status_1)
    if found.ranked is None:
        raise _no_row(view, feature, shown_id, STATUS_NAMES[found.status_1[0]], headers)
    ranked = [Neighbor(*pair) for pair in found.ranked.pairs(sign=-1 if metric == "euclidean" else 1)]
    return JsonResponse(NeighborsResponse(feature, shown_id, view.version, metric, ranked), headers=headers)


@routes.add("POST", NEIGHBORS_ROUTE, scope="read", response=None, direct=True)
async def neighbors_of_part(request: Request) -> Response:
    """The nearest of this server's rows, for a server that asks all parts"""
    return await answer_question(request, NeighborsRequest, rank_neighbors, request.app.state.pools.neighbors)


@routes.add("GET", "/v1/embeddings/{feature}/{id:path}", **ROW)
async def row(request: Request, feature: str, id: str) -> Response:
    """One row"""
    return await _row(request, feature, id)


def parse_id(text: str) -> tuple[int, int | str]:
    """The id of a string in a URL, and the form in which responses show it: a decimal integer is a number."""
    row_id, string = encode_id(text)
    return row_id, row_id if string is None else string


async def _row(request: Request, feature: str, text: str) -> Response:
    state = request.app.state
    replica: Replica = state.replica
    pools: Pools = state.pools
    view = replica.view_satisfying(parse_preconditions(request.headers))
    headers = replica.version_headers(view)
    number = _feature_number(view, feature)
    row_id, shown_id = parse_id(text)
    if (owner := view.part.owner_of(number, row_id)) is not None and view.part.servers is not None:
        path = f"{request.scope['raw_path'].decode('latin-1')}?{request.url.query}".removesuffix("?")
        return await pools.remote.run(partial(forward_get, view.part.servers, owner, path, request.headers))
    ids_1 = np.array([row_id], np.int64)
    view.part.check_owned(number, ids_1)
    rows_1D, status_1 = view.lookup(number, ids_1)
    state.row_counts.add(status_1)
    if status_1[0] != 0:
        raise _no_row(view, feature, shown_id, STATUS_NAMES[status_1[0]], headers)
    count, last_seen_ms = view.own_view.table_of(number).count_and_last_seen(number, row_id)
    found = RowResponse(
        feature=feature,
        id=shown_id,
        status="known",
        vector=rows_1D[0].tolist(),
        count=count,
        last_seen_ms=last_seen_ms,
        version=view.version,
    )
    return JsonResponse(found, headers=headers)


PASSED_ON = (MAX_STALENESS, MIN_VERSION)
PASSED_BACK = ("content-type", "retry-after", "x-springtide-version", "x-springtide-staleness-ms")


def forward_get(servers: PartServers, index: int, path: str, headers: Mapping[str, str]) -> Response:
    """Ask the server of a part, and return its response; PartError if there is none.

    `path` with its query, still encoded; `headers` those of the client's request.
    """
    found = servers.get(index, path, {name: headers[name] for name in PASSED_ON if name in headers})
    if found.status in (401, 403):  # the client's own token was valid here
        raise PartError(f"{servers.name_of(index)} refuses this server's token")
    received = found.headers
    return Response(found.body, found.status, {name: received[name] for name in PASSED_BACK if name in received})


@routes.add(
    "POST",
    "/v1/embeddings/{feature:path}",
    scope="read",
    request={JSON: LookupBody, MSGPACK: LookupBody, ARROW: BINARY, RAW: BINARY},
    response={JSON: LookupResponse, MSGPACK: PackedLookupResponse, ARROW: BINARY, RAW: BINARY},
    errors=(400, 404, 406, 413, 415, 421, 422, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
    direct=True,
)
async def batch_lookup(request: Request, feature: str) -> Response:
    """Many rows

    {"ids": [...], "max_staleness_ms": 500}

    By Content-Type and Accept: application/json, application/msgpack (vectors: one bin of N x dim float32),
    application/vnd.apache.arrow.stream (column id in; id, status, vector out) or application/octet-stream
    (little-endian int64 in; N x dim float32, or ;dtype=float16, then N status bytes out: 0 known, 1 unknown,
    2 not_admitted, 3 forgotten; integer ids only).
    """
    state = request.app.state
    replica: Replica = state.replica
    pool: BoundedPool = state.pools.remote if replica.part.is_router else state.pools.lookups
    options = LookupOptions.from_headers(feature, request.headers)
    body = await request.body()
    decode = partial(decode_request, options.request_type, body, state.config.max_ids)
    # raw ids are not decoded, the body is used as it is
    is_inline = len(body) <= INLINE_BYTES or options.request_type.name == RAW
    asked = decode() if is_inline else await pool.run(decode)

    async def answer(view: ServedView) -> tuple[ServedView, tuple[bytes | memoryview, UInt8Array]]:
        find = partial(look_up, view, feature_number(view, options), options, asked)
        if not is_small(view, options, len(asked.ids_N)):
            return view, await pool.run(find)
        found = await pool.run(find) if view.part.is_router else find()
        state.fast_path.remember(request.scope, body, partial(state.known_lookups.answer, options))
        return view, found

    preconditions = options.preconditions.with_max_staleness(asked.max_staleness_ms)
    view, (content, status_N) = await replica.at_one_version(preconditions, answer)
    state.row_counts.add(status_N)
    return Response(content, headers=response_headers(replica, view, options, len(content)))


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
