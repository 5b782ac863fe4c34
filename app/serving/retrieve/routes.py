"""POST /v1/retrieve: a user's features in, the best items out."""

from functools import partial
from typing import NamedTuple

from fastapi import Request

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.preconditions import parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import PRECONDITIONS, VERSION_HEADER, Routes
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.asking import at_one_version
from springtide.app.serving.retrieve.ranking import (
    RetrieveBody,
    RetrieveResponse,
    decode_retrieve_request,
    find_items,
    find_items_everywhere,
)
from springtide.app.serving.retrieve.retriever import Retriever
from springtide_client.parts.rankings import RankedIds

routes = Routes("Predictions")


class RetrieveParts(NamedTuple):
    """The objects that the route of this module uses."""

    replica: Replica
    retriever: Retriever
    metrics: MetricsRegistry
    pool: BoundedPool
    remote_pool: BoundedPool
    max_items: int
    max_excluded: int


@routes.add(
    "POST",
    "/v1/retrieve",
    scope="predict",
    request=RetrieveBody,
    response=RetrieveResponse,
    errors=(400, 413, 422, 501, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
)
async def retrieve(request: Request) -> JsonResponse:
    """The best items for a user

    {"user": {raw features}, "k": 10, "filter": {"genre": ["jazz"], "price": {"max": 20}}, "exclude": [17]} for a model
    with two towers. The response is {"items": [{"id", "score"}, ...], "version"}, the best first: only items that have
    a row in that version, scored with its rows and parameters. filter: an item must have one of the ids, and numbers in
    the range. Without "exact": true an index proposes the items that are scored, and may miss some.
    """
    parts: RetrieveParts = request.app.state.retrieve
    body = decode_retrieve_request(await request.body(), max_k=parts.max_items, max_excluded=parts.max_excluded)
    preconditions = parse_preconditions(request.headers).with_max_staleness(body.max_staleness_ms)
    newest = parts.replica.require_view()
    newest.part.check_knows_all("the best items")
    if newest.part.servers is None:
        served = parts.retriever.require()
        view = served.towers.view
        parts.replica.check(view, preconditions)
        found = await parts.pool.run(lambda: find_items(parts.retriever, served, body))
    else:
        view, found = await at_one_version(parts.replica, preconditions, partial(_ask_all, parts, body))
    parts.metrics.increment("springtide_retrieved_items_total", len(found.ids_M))
    document = {"items": found.documents(), "version": view.version}
    return JsonResponse(document, headers=parts.replica.version_headers(view))


async def _ask_all(parts: RetrieveParts, body: RetrieveBody, view: ServedView) -> tuple[ServedView, RankedIds]:
    def find() -> RankedIds:
        return find_items_everywhere(parts.retriever, parts.retriever.template_of(view), view, body)

    return view, await parts.remote_pool.run(find)
