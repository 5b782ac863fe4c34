"""Handlers of requests to a part at exactly one version, from those that ask every part: POST /v1/parts/rows,
/v1/parts/neighbors and /v1/parts/items.

Answered as ASGI functions, before FastAPI sees the request.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import (
    bad_request,
    misdirected,
    part_unavailable,
    version_gone,
    version_not_reached,
    versions_differ,
)
from springtide.app.serving.http.middleware import read_body
from springtide.app.serving.model.part import Part
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.kernels.cpu.serving.layer_search import LayerSearch
from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.format.records import Tip, version_name
from springtide_client.parts.rankings import Demand
from springtide_client.parts.row_request import ROUTE, RowRequest


class RecentViews:
    """Keeps the newest few views. One thread adds, any thread finds."""

    def __init__(self, max_views: int) -> None:
        """0: keep none, for no other server asks."""
        self._max_views = max_views
        self._views: tuple[ServedView, ...] = ()

    def add(self, view: ServedView) -> None:
        """Take a view that is served from now on."""
        if self._max_views:
            self._views = (*self._views, view)[-self._max_views :]

    def find(self, tip: Tip) -> ServedView | None:
        """Return the view of a version; None when it is kept no longer."""
        return next((view for view in reversed(self._views) if view.own_view.tip == tip), None)


class DemandedViews:
    """Finds the view of a demanded version. For the event loop's thread alone."""

    def __init__(self, replica: Replica, recent: RecentViews, part: Part) -> None:
        self._replica, self._recent, self._part = replica, recent, part

    async def at(self, demand: Demand) -> ServedView:
        """Return the demanded version, once it is served.

        ApiError 421 for another part, 410 when the version is kept no longer, 503 when it does not come in time.
        """
        if demand.hash_range != self._part.hash_range:
            message = f"this server holds {self._part.words}, and not part {demand.hash_range}"
            raise misdirected(message, "give the addresses of the parts in the order of their ranges")
        tip, deadline = demand.tip, time.monotonic() + demand.wait_ms / 1000
        while True:
            view = self._replica.require_view()
            if (found := self.find(tip)) is not None:
                return found
            if view.version >= tip.number:
                raise version_gone(tip.number, view.version)
            if (left := deadline - time.monotonic()) <= 0 or self._replica.stopping:
                raise version_not_reached(tip.number, view.version)
            await self._replica.wait_for_change(left)

    def find(self, tip: Tip) -> ServedView | None:
        """Return the view of a version, None if there is none now."""
        view = self._replica.view
        return view if view is not None and view.own_view.tip == tip else self._recent.find(tip)

    def headers_of(self, view: ServedView) -> dict[str, str]:
        """Return the headers of a response from a view."""
        return self._replica.version_headers(view)


Remember = Callable[[bytes, Scope, bytes, Callable[[bytes], tuple[dict[str, str], bytes | memoryview] | None]], None]
RAW = "application/octet-stream"
# a larger request is answered by a thread
INLINE_IDS = 1_024


class PartRowsHandler:
    """Answers authorized requests for rows of this server's part."""

    def __init__(
        self,
        views: DemandedViews,
        pool: BoundedPool,
        remember: Remember,
        *,
        max_body_bytes: int,
    ) -> None:
        """`remember(data, scope, body, answer)` shows plain requests to the fast path."""
        self._views, self._pool = views, pool
        self._remember = remember
        self._max_body_bytes = max_body_bytes

    def matches(self, scope: Scope) -> bool:
        """Return True if the request is for this handler; its route is then noted in the scope."""
        if scope["path"] != ROUTE or scope["method"] != "POST":
            return False
        scope["springtide.route"] = ROUTE
        return True

    async def handle(self, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Look up and send the rows. Raises ApiError."""
        body = await read_body(receive, self._max_body_bytes)
        try:
            request, wait_ms = RowRequest.decode(scope["query_string"].decode("latin-1"), body)
        except ValueError as error:
            raise bad_request(f"not a request for rows of a part: {error}", "see springtide_client.parts") from None
        view = await self._views.at(Demand(request.tip, request.hash_range, wait_ms))
        if request.table not in view.own_view.tables:
            raise bad_request(f"version {version_name(view.version)} has no table {request.table!r}")
        if len(request.ids_K) <= INLINE_IDS:
            content = find_rows(view, request)
            if (data := scope.get("springtide.data")) is not None:
                self._remember(data, scope, body, partial(self._answer, scope["query_string"].decode("latin-1")))
        else:
            content = await self._pool.run(lambda: find_rows(view, request))
        response = self._headers(view, content)
        raw = [(name.lower().encode(), value.encode()) for name, value in response.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    def _headers(self, view: ServedView, content: bytes | memoryview) -> dict[str, str]:
        return {"content-type": RAW, "content-length": str(len(content)), **self._views.headers_of(view)}

    def _answer(self, query: str, body: bytes) -> tuple[dict[str, str], bytes | memoryview] | None:
        """Answer a request whose query was answered before; None if the version is served no longer."""
        request, _ = RowRequest.decode(query, body)
        view = self._views.find(request.tip)
        if view is None or len(request.ids_K) > INLINE_IDS:
            return None
        content = find_rows(view, request)
        return self._headers(view, content), content


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


class PartQuestion(NamedTuple):
    """A question that every part is asked, and how this server answers for its own rows, by the threads of a pool."""

    decode: Callable[[bytes], Any]  # the body of a request; ValueError for another one
    answer: Callable[[ServedView, Any], bytes]
    pool: BoundedPool


class PartQuestionHandler:
    """Answers authorized requests."""

    def __init__(self, views: DemandedViews, questions: Mapping[str, PartQuestion], *, max_body_bytes: int) -> None:
        """`questions`: by the path of the route."""
        self._views, self._questions = views, questions
        self._max_body_bytes = max_body_bytes

    def matches(self, scope: Scope) -> bool:
        """Return True if the request is for this handler; its route is then noted in the scope."""
        if scope["path"] not in self._questions or scope["method"] != "POST":
            return False
        scope["springtide.route"] = scope["path"]
        return True

    async def handle(self, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises ApiError."""
        body, question = await read_body(receive, self._max_body_bytes), self._questions[scope["path"]]
        try:
            demand = Demand.decode(scope["query_string"].decode("latin-1"))
            request = question.decode(body)
        except ValueError as error:
            raise bad_request(f"not a question to a part: {error}", "see springtide_client.parts") from None
        view = await self._views.at(demand)
        try:
            content = await question.pool.run(lambda: question.answer(view, request))
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
