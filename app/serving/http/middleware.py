"""The outermost ASGI function: tokens, limits and time measured for all, and the hot route answered before FastAPI."""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.serving.http.access_log import AccessLog
from app.serving.http.authorization import PUBLIC_PATHS, UNTHROTTLED_PATHS
from app.serving.http.errors import (
    REJECTION_REASONS,
    ApiError,
    bad_request,
    body_too_large,
    internal_error,
    unsupported_encoding,
)
from app.serving.http.fast_path import ROUTE, FastPath
from app.serving.http.preconditions import MAX_STALENESS, MIN_VERSION
from app.serving.lookup.batch_lookup import LookupOptions, feature_number, look_up, response_headers, runs_inline
from app.serving.lookup.codecs import RAW, decode_request
from app.serving.server.drain import ConnectionDrain
from app.serving.service import Service

EMBEDDINGS = "/v1/embeddings/"
# what monitors and people look at by HEAD
HEAD_PATHS = PUBLIC_PATHS | {"/metrics", "/v1/status"}
# a longer body is read by a thread
INLINE_BYTES = 65_536
SINGLETON_HEADERS = (
    b"host",
    b"authorization",
    b"content-type",
    MAX_STALENESS.encode(),
    MIN_VERSION.encode(),
)

logger = logging.getLogger(__name__)


class HttpMiddleware:
    """Wraps the FastAPI application; everything that leaves here is counted by route and status."""

    def __init__(self, service: Service, inner: ASGIApp, leaving: ConnectionDrain) -> None:
        self._service = service
        self._inner = inner
        self.leaving = leaving
        self.config = service.config
        self._access_log = AccessLog(service.config.access_log_sample_rate)
        self.express = FastPath(service.config, service.replica, service.metrics, self._access_log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.perf_counter()
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, counted)
        except ApiError as refusal:
            scope["springtide.refusal"] = refusal.code
            if status == 0:
                await _refuse(counted, refusal)
        except ConnectionResetError:
            pass  # the asker left in mid-question: nobody to answer
        except OSError as error:
            # the asker went away, or a file shrank in mid-answer: the connection ends, the server does not
            logger.info("an answer was cut short", extra={"path": scope["path"], "error": str(error)})
            if status == 0:
                await _refuse(counted, ApiError(500, "internal", "the answer could not be read", "retry"))
            else:
                raise
        except Exception:
            logger.exception("a request failed", extra={"path": scope["path"]})
            if status == 0:
                await _refuse(counted, internal_error())
            else:
                raise
        finally:
            route = scope.get("springtide.route") or getattr(scope.get("route"), "path", None) or "none"
            seconds = time.perf_counter() - started
            self._service.metrics.observe("springtide_http_seconds", seconds, route=route)
            self._service.metrics.increment("springtide_http_answers_total", route=route, status=str(status or 499))
            self._access_log.record(scope["method"], route, status or 499, seconds)
            self.count_rejection(scope.get("springtide.refusal", ""))

    def count_rejected_connection(self, refusal: ApiError) -> None:
        """A connection was refused before a request of it could be answered."""
        self._service.metrics.increment("springtide_http_answers_total", route="none", status=str(refusal.status))
        self.count_rejection(refusal.code)

    def count_rejection(self, code: str) -> None:
        """Count what was not served, by its code."""
        if reason := REJECTION_REASONS.get(code):
            self._service.metrics.increment("springtide_refused_total", reason=reason)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if len(headers) < len(scope["headers"]):
            _check_single(scope["headers"])
        self._service.authorizer.check(path, headers)
        if path in UNTHROTTLED_PATHS:
            await self._admitted(path, headers, scope, receive, send)
            return
        self._service.begin_request()
        try:
            await self._admitted(path, headers, scope, receive, send)
        finally:
            self._service.end_request()

    async def _admitted(self, path: str, headers: dict[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._service.config.max_body_bytes:
            raise body_too_large(self._service.config.max_body_bytes)
        encoding = headers.get("content-encoding")
        if encoding is not None and encoding.strip().lower() != "identity" and scope["method"] not in ("GET", "HEAD"):
            raise unsupported_encoding(encoding)
        if scope["method"] == "POST" and path.startswith(EMBEDDINGS):
            scope["springtide.route"] = ROUTE
            await self._embeddings(path[len(EMBEDDINGS) :], headers, scope, receive, send)
            return
        if scope["method"] == "HEAD" and path in HEAD_PATHS:
            asked = {**scope, "method": "GET"}  # the connection knows that it sends no body
            await self._inner(asked, self._limited(receive), send)
            scope.update({name: asked[name] for name in ("route", "springtide.refusal") if name in asked})
            return
        await self._inner(scope, self._limited(receive), send)

    async def _embeddings(
        self, feature: str, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        service = self._service
        manner = LookupOptions.from_headers(feature, headers)
        body = await _read_body(receive, service.config.max_body_bytes)
        read = partial(decode_request, manner.request_type, body, service.config.max_ids)
        # raw ids are not read, only looked at
        question = (
            read() if len(body) <= INLINE_BYTES or manner.request_type.name == RAW else await service.lookups.run(read)
        )
        view = service.replica.view_satisfying(manner.preconditions.with_max_staleness(question.max_staleness_ms))
        number = feature_number(view, manner)

        def work() -> bytes | memoryview:
            content, status = look_up(view, number, manner, question)
            service.count_rows(status)
            return content

        if runs_inline(view, manner, len(question.ids_N)):
            content = work()
            if (data := scope.get("springtide.data")) is not None:
                self.express.remember(data, scope, manner, body)
        else:
            content = await service.lookups.run(work)
        texts = response_headers(service.replica, view, manner, len(content))
        raw = [(name.lower().encode(), text.encode()) for name, text in texts.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    def _limited(self, receive: Receive) -> Receive:
        left = self._service.config.max_body_bytes

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise body_too_large(self._service.config.max_body_bytes)
            return message

        return limited


def _check_single(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise ApiError 400 where a header that decides who asks, or what, is there twice: whoever passes the request on
    may have believed the other one."""
    names = Counter(name.lower() for name, _ in headers)
    for name in SINGLETON_HEADERS:
        if names[name] > 1:
            raise bad_request(f"the header {name.decode()} is there {names[name]} times", "send it once")


async def _read_body(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the asker left in mid-question")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise body_too_large(max_bytes)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _refuse(send: Callable[[Message], Awaitable[None]], refusal: ApiError) -> None:
    content = refusal.body()
    headers = {"content-type": "application/json", "content-length": str(len(content)), **refusal.headers}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
