"""Routes between servers of parts: what one that asks every part, at exactly one version, is answered.

POST /v1/parts/rows is here; the rankings, /v1/parts/neighbors and /v1/parts/items, are beside their own routes.
"""

import time
from collections.abc import Callable
from functools import partial

from fastapi import Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import bad_request, misdirected, version_gone, version_not_reached
from springtide.app.serving.http.fast_path import Content
from springtide.app.serving.http.route import RAW, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.kernels.cpu.serving.layer_search import LayerSearch
from springtide_client.format.records import version_name
from springtide_client.parts.rankings import Demand, RankedIds, Ranking, decode_ranking
from springtide_client.parts.row_request import ROUTE, RowRequest

routes = Routes("Parts")
# a larger request is answered by a thread
INLINE_IDS = 1_024


@routes.add("POST", ROUTE, scope="read", response=None, direct=True)
async def rows_of_part(request: Request) -> Response:
    """Rows of this server's part"""
    state = request.app.state
    replica: Replica = state.replica
    query, body = request.scope["query_string"].decode("latin-1"), await request.body()
    try:
        asked, wait_ms = RowRequest.decode(query, body)
    except ValueError as error:
        raise bad_request(f"not a request for rows of a part: {error}", "see springtide_client.parts") from None
    view = await demanded_view(replica, Demand(asked.head, asked.hash_range, wait_ms))
    if asked.table not in view.own_view.tables:
        raise bad_request(f"version {version_name(view.version)} has no table {asked.table!r}")
    if len(asked.ids_K) <= INLINE_IDS:
        content = find_rows(view, asked)
        state.fast_path.remember(request.scope, body, partial(_answer_known, replica, query))
    else:
        content = await state.pools.lookups.run(lambda: find_rows(view, asked))
    return Response(content, headers=_headers(replica, view, content))


async def answer_question(
    request: Request, kind: type[Ranking], rank: Callable[[ServedView, Ranking], RankedIds], pool: BoundedPool
) -> Response:
    """Answer a question that every part is asked, for this server's own rows, by the threads of a pool.

    ApiError 400 for a body that is no question of this kind, and as `demanded_view` says.
    """
    replica: Replica = request.app.state.replica
    body = await request.body()
    try:
        demand = Demand.decode(request.scope["query_string"].decode("latin-1"))
        question = decode_ranking(body, kind)
    except ValueError as error:
        raise bad_request(f"not a question to a part: {error}", "see springtide_client.parts") from None
    view = await demanded_view(replica, demand)
    content = await pool.run(lambda: rank(view, question).encode())
    return Response(content, headers=replica.version_headers(view), media_type="application/msgpack")


async def demanded_view(replica: Replica, demand: Demand) -> ServedView:
    """Return the demanded version, once it is served.

    ApiError 421 for another part, 410 when the version is kept no longer, 503 when it does not come in time.
    """
    part = replica.part
    if demand.hash_range != part.hash_range:
        message = f"this server holds {part.words}, and not part {demand.hash_range}"
        raise misdirected(message, "give the addresses of the parts in the order of their ranges")
    head, deadline = demand.head, time.monotonic() + demand.wait_ms / 1000
    while True:
        view = replica.require_view()
        if (found := replica.view_of(head)) is not None:
            return found
        if view.version >= head.number:
            raise version_gone(head.number, view.version)
        if (left := deadline - time.monotonic()) <= 0 or replica.stopping:
            raise version_not_reached(head.number, view.version)
        await replica.wait_for_change(left)


def find_rows(view: ServedView, request: RowRequest) -> bytes | memoryview:
    """The body of the response."""
    search = view.own_view.tables[request.table].search
    if not request.with_states:
        if isinstance(search, LayerSearch):  # rows and status lie in memory as they are sent
            return search.packed(request.features_K, request.ids_K).data
        rows_KD, status_K = search(request.features_K, request.ids_K)
        return rows_KD.tobytes() + status_K.tobytes()
    found = search.with_states(request.features_K, request.ids_K)
    return b"".join(column.tobytes() for column in (found.rows_KD, found.status_K, found.states_KW, found.counts_K))


def _answer_known(replica: Replica, query: str, body: bytes, later: object) -> Content | None:
    """Answer a request whose query was answered before; None if the version is served no longer."""
    request, _ = RowRequest.decode(query, body)
    view = replica.view_of(request.head)
    if view is None or len(request.ids_K) > INLINE_IDS:
        return None
    content = find_rows(view, request)
    return _headers(replica, view, content), content


def _headers(replica: Replica, view: ServedView, content: bytes | memoryview) -> dict[str, str]:
    return {"content-type": RAW, "content-length": str(len(content)), **replica.version_headers(view)}
