"""POST /v1/embeddings/{feature}: answered as an ASGI function, before FastAPI sees the request."""

from collections.abc import Mapping
from functools import partial

from starlette.types import Receive, Scope, Send

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.middleware import read_body
from springtide.app.serving.http.route import ARROW, BINARY, JSON, MSGPACK, PRECONDITIONS, RAW, VERSION_HEADER, Route
from springtide.app.serving.lookup.batch_lookup import (
    LookupOptions,
    count_rows,
    feature_number,
    is_small,
    look_up,
    response_headers,
    runs_inline,
)
from springtide.app.serving.lookup.codecs import LookupBody, LookupResponse, PackedLookupResponse, decode_request
from springtide.app.serving.lookup.fast_path import ROUTE, FastPath
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.asking import at_one_version

PATH_PREFIX = ROUTE.removesuffix("{feature}")
BATCH_LOOKUP = Route(
    method="POST",
    path=ROUTE,
    tag="Embeddings",
    summary="Many rows",
    description="""{"ids": [...], "max_staleness_ms": 500}

By Content-Type and Accept: application/json, application/msgpack (vectors: one bin of N x dim float32),
application/vnd.apache.arrow.stream (column id in; id, status, vector out) or application/octet-stream
(little-endian int64 in; N x dim float32, or ;dtype=float16, then N status bytes out: 0 known, 1 unknown,
2 not_admitted, 3 forgotten; integer ids only).
""",
    scope="read",
    request={JSON: LookupBody, MSGPACK: LookupBody, ARROW: BINARY, RAW: BINARY},
    response={JSON: LookupResponse, MSGPACK: PackedLookupResponse, ARROW: BINARY, RAW: BINARY},
    errors=(400, 404, 406, 413, 415, 421, 422, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
)
# a longer body is decoded by a thread
INLINE_BYTES = 65_536


class BatchLookupHandler:
    """Answers authorized requests for many rows, and shows plain ones to the fast path."""

    def __init__(
        self,
        replica: Replica,
        metrics: MetricsRegistry,
        pool: BoundedPool,
        fast_path: FastPath,
        *,
        max_body_bytes: int,
        max_ids: int,
    ) -> None:
        self._replica = replica
        self._metrics = metrics
        self._pool = pool
        self._fast_path = fast_path
        self._max_body_bytes, self._max_ids = max_body_bytes, max_ids

    def matches(self, scope: Scope) -> bool:
        """Return True if the request is for this handler; its route is then noted in the scope."""
        if scope["method"] != "POST" or not scope["path"].startswith(PATH_PREFIX):
            return False
        scope["springtide.route"] = ROUTE
        return True

    async def handle(self, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Look up and send the rows; `headers` are those of the scope by lower-case name. Raises ApiError."""
        options = LookupOptions.from_headers(scope["path"][len(PATH_PREFIX) :], headers)
        body = await read_body(receive, self._max_body_bytes)
        decode = partial(decode_request, options.request_type, body, self._max_ids)
        # raw ids are not decoded, the body is used as it is
        inline = len(body) <= INLINE_BYTES or options.request_type.name == RAW
        request = decode() if inline else await self._pool.run(decode)

        async def answer(view: ServedView) -> tuple[ServedView, bytes | memoryview]:
            number = feature_number(view, options)

            def look_up_and_count() -> bytes | memoryview:
                content, status_N = look_up(view, number, options, request)
                count_rows(self._metrics, status_N)
                return content

            is_inline = runs_inline(view, options, len(request.ids_N))
            content = look_up_and_count() if is_inline else await self._pool.run(look_up_and_count)
            data = scope.get("springtide.data")
            if data is not None and is_small(view, options, len(request.ids_N)):
                self._fast_path.remember(data, scope, options, body)
            return view, content

        preconditions = options.preconditions.with_max_staleness(request.max_staleness_ms)
        view, content = await at_one_version(self._replica, preconditions, answer)
        response = response_headers(self._replica, view, options, len(content))
        raw = [(name.lower().encode(), value.encode()) for name, value in response.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": content})
