"""POST /v1/retrieve: a user's features in, the best items out."""

from functools import partial
from typing import NamedTuple

from fastapi import APIRouter, Request

from app.serving.bounded_pool import BoundedPool
from app.serving.http.preconditions import parse_preconditions
from app.serving.http.responses import JsonResponse
from app.serving.metrics.registry import MetricsRegistry
from app.serving.model.replica import Replica
from app.serving.retrieve.request import RetrieveBody, decode_retrieve_request, encode_query
from app.serving.retrieve.retriever import Retriever
from app.serving.retrieve.search import ServedItems

router = APIRouter(tags=["Predictions"])


class RetrieveParts(NamedTuple):
    """What the route of this module uses."""

    replica: Replica
    retriever: Retriever
    metrics: MetricsRegistry
    pool: BoundedPool
    max_items: int
    max_excluded: int


@router.post("/v1/retrieve")
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
    parts.replica.require_view().part.check_holds_all("the best items are found among all rows")
    served = parts.retriever.require()
    view = served.towers.view
    parts.replica.check(view, preconditions)

    items = await parts.pool.run(partial(find_items, parts.retriever, served, body))
    parts.metrics.increment("springtide_retrieved_items_total", len(items))
    return JsonResponse({"items": items, "version": view.version}, headers=parts.replica.version_headers(view))


def find_items(retriever: Retriever, served: ServedItems, body: RetrieveBody) -> list[dict[str, object]]:
    """Return what the response lists; ApiError 422 for what cannot be encoded."""
    view, template = served.towers.view, served.towers.template
    query = encode_query(body, template.user_part, template.layout.part)
    retriever.note(query.user)
    ids_K, scores_K = served.retrieve(
        query.user, query.k, wanted=query.wanted, excluded=query.excluded_X, exact=query.exact
    )
    names = view.display_ids(template.layout.number, ids_K)
    return [{"id": name, "score": score} for name, score in zip(names, scores_K.tolist(), strict=True)]
