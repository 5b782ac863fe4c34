"""POST /v1/retrieve: a user's features in, the best items out."""

from functools import partial

from fastapi import Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import Pools
from springtide.app.serving.http.preconditions import parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import PRECONDITIONS, VERSION_HEADER, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.routes import answer_question
from springtide.app.serving.retrieve.ranking import (
    RetrieveBody,
    RetrievedItem,
    RetrieveResponse,
    decode_retrieve_request,
    find_items,
    find_items_everywhere,
    rank_items,
)
from springtide.app.serving.retrieve.retriever import Retriever
from springtide_client.parts.rankings import ITEMS_ROUTE, ItemsRequest, RankedIds

routes = Routes("Predictions")


@routes.add(
    "POST",
    "/v1/retrieve",
    scope="predict",
    request=RetrieveBody,
    response=RetrieveResponse,
    errors=(400, 413, 422, 501, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
    direct=True,
)
async def retrieve(request: Request) -> JsonResponse:
    """The best items for a user

    {"user": {raw features}, "k": 10, "filter": {"genre": ["jazz"], "price": {"max": 20}}, "exclude": [17]} for a model
    with two towers. The response is {"items": [{"id", "score"}, ...], "version"}, the best first: only items that have
    a row in that version, scored with its rows and parameters. filter: an item must have one of the ids, and numbers in
    the range. Without "exact": true an index proposes the items that are scored, and may miss some.
    """
    state = request.app.state
    replica: Replica = state.replica
    retriever: Retriever = state.retriever
    pools: Pools = state.pools
    body = decode_retrieve_request(
        await request.body(), max_k=state.config.max_neighbors, max_excluded=state.config.max_ids
    )
    preconditions = parse_preconditions(request.headers).with_max_staleness(body.max_staleness_ms)
    newest = replica.require_view()
    newest.part.check_knows_all("the best items")

    async def ask_all(view: ServedView) -> tuple[ServedView, RankedIds]:
        return view, await pools.remote.run(lambda: find_items_everywhere(retriever, view, body))

    if newest.part.servers is None:
        served = retriever.require()
        view = served.towers.view
        replica.check(view, preconditions)
        found = await pools.retrievals.run(lambda: find_items(retriever, served, body))
    else:
        view, found = await replica.at_one_version(preconditions, ask_all)
    state.metrics.increment("springtide_retrieved_items_total", len(found.ids_M))
    items = [RetrievedItem(*pair) for pair in found.pairs()]
    return JsonResponse(RetrieveResponse(items, view.version), headers=replica.version_headers(view))


@routes.add("POST", ITEMS_ROUTE, scope="read", response=None, direct=True)
async def items_of_part(request: Request) -> Response:
    """The best of this server's items, for a server that asks all parts"""
    state = request.app.state
    return await answer_question(request, ItemsRequest, partial(rank_items, state.retriever), state.pools.retrievals)
