"""POST /v1/parts/neighbors and /v1/parts/items: the best of this server's own ids at exactly one version.

For servers and clients that ask every part, and rank what all have answered.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import bad_request, part_unavailable, versions_differ
from springtide.app.serving.http.request_body import read_body
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.demanded_views import DemandedViews
from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.parts.ranked_ids import RankedIds
from springtide_client.parts.ranking_request import Demand, ItemsRequest, NeighborsRequest, decode_ranking


class Ranker(NamedTuple):
    """How one route is answered, by the threads of a pool."""

    request_type: type[NeighborsRequest] | type[ItemsRequest]
    rank: Callable[[ServedView, Any], RankedIds]
    pool: BoundedPool


class PartRankingHandler:
    """Answers authorized requests."""

    def __init__(self, views: DemandedViews, rankers: Mapping[str, Ranker], *, max_body_bytes: int) -> None:
        """`rankers`: by the path of the route."""
        self._views, self._rankers = views, rankers
        self._max_body_bytes = max_body_bytes

    def matches(self, scope: Scope) -> bool:
        """Return True if the request is for this handler; its route is then noted in the scope."""
        if scope["path"] not in self._rankers or scope["method"] != "POST":
            return False
        scope["springtide.route"] = scope["path"]
        return True

    async def handle(self, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Rank and send. Raises ApiError."""
        body, ranker = await read_body(receive, self._max_body_bytes), self._rankers[scope["path"]]
        try:
            demand = Demand.decode(scope["query_string"].decode("latin-1"))
            request = decode_ranking(body, ranker.request_type)
        except ValueError as error:
            raise bad_request(f"not a request for a part's best ids: {error}", "see springtide_client.parts") from None
        view = await self._views.at(demand)
        try:
            content = await ranker.pool.run(lambda: ranker.rank(view, request).encode())
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
