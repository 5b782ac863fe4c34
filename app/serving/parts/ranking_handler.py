"""POST /v1/parts/neighbors and /v1/parts/items: the best of this server's own ids at exactly one version.

For servers and clients that ask every part, and rank what all have answered.
"""

from collections.abc import Mapping

from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.parts.ranking_request import (
    ITEMS_ROUTE,
    NEIGHBORS_ROUTE,
    Demand,
    ItemsRequest,
    NeighborsRequest,
    decode_ranking,
)
from springtide_client.rows.nearest import METRICS
from starlette.types import Receive, Scope, Send

from app.serving.bounded_pool import BoundedPool
from app.serving.http.errors import bad_request, part_unavailable, versions_differ
from app.serving.http.request_body import read_body
from app.serving.lookup.neighbors import rank_neighbors
from app.serving.model.view import ModelView
from app.serving.parts.demanded_views import DemandedViews
from app.serving.retrieve.ranking import rank_items
from app.serving.retrieve.retriever import Retriever

KINDS: dict[str, type[NeighborsRequest] | type[ItemsRequest]] = {
    NEIGHBORS_ROUTE: NeighborsRequest,
    ITEMS_ROUTE: ItemsRequest,
}


class PartRankingHandler:
    """Answers authorized requests."""

    def __init__(
        self,
        views: DemandedViews,
        retriever: Retriever,
        *,
        neighbor_pool: BoundedPool,
        item_pool: BoundedPool,
        max_body_bytes: int,
    ) -> None:
        self._views, self._retriever = views, retriever
        self._neighbor_pool, self._item_pool = neighbor_pool, item_pool
        self._max_body_bytes = max_body_bytes

    def matches(self, scope: Scope) -> bool:
        """Return True if the request is for this handler; its route is then noted in the scope."""
        if scope["path"] not in KINDS or scope["method"] != "POST":
            return False
        scope["springtide.route"] = scope["path"]
        return True

    async def handle(self, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Rank and send. Raises ApiError."""
        body = await read_body(receive, self._max_body_bytes)
        try:
            demand = Demand.decode(scope["query_string"].decode("latin-1"))
            request = decode_ranking(body, KINDS[scope["path"]])
        except ValueError as error:
            raise bad_request(f"not a request for a part's best ids: {error}", "see springtide_client.parts") from None
        view = await self._views.at(demand)
        try:
            content = await self._rank(view, request)
        except VersionsDifferError as error:  # this server has asked others, for rows that describe its items
            raise versions_differ(str(error)) from None
        except PartError as error:
            raise part_unavailable(str(error)) from None
        response = {
            "content-type": "application/msgpack",
            "content-length": str(len(content)),
            **self._views.headers_of(view),
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in response.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    async def _rank(self, view: ModelView, request: NeighborsRequest | ItemsRequest) -> bytes:
        if isinstance(request, ItemsRequest):
            return await self._item_pool.run(lambda: rank_items(self._retriever, view, request).encode())
        dims = {number: view.dim_of(number) for number in view.feature_numbers.values()}
        if request.metric not in METRICS or len(request.query) != 4 * dims.get(request.number, -1):
            raise bad_request("not a request for neighbors: another feature, metric or length of rows")
        return await self._neighbor_pool.run(lambda: rank_neighbors(view, request).encode())
