"""The outermost ASGI function: authorization, limits, metrics and the access log, for every request."""

import logging
import time
from collections import Counter
from collections.abc import Mapping

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from springtide.app.serving.http.authorization import Authorizer
from springtide.app.serving.http.errors import (
    REJECTION_REASONS,
    ApiError,
    api_error,
    bad_request,
    body_too_large,
    busy,
    too_many_requests,
    unsupported_encoding,
)
from springtide.app.serving.http.preconditions import MAX_STALENESS, MIN_VERSION
from springtide.app.serving.http.route import RouteTable
from springtide.app.serving.metrics.registry import MetricsRegistry

logger = logging.getLogger(__name__)


class AccessLog:
    """Logs an evenly spaced sample of the requests. For the event loop's thread alone."""

    def __init__(self, sample_rate: float) -> None:
        """`sample_rate` 0.01 logs every hundredth request."""
        self._sample_rate = sample_rate
        self._due = 0.0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Log a finished request, if it is its turn."""
        self._due += self._sample_rate
        if self._due >= 1.0:
            self._due -= 1.0
            extra = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 3)}
            logger.info("request", extra=extra)


class RequestLimits:
    """Counts requests in flight and open streams. For the event loop's thread alone."""

    def __init__(self, *, max_in_flight: int, max_streams: int) -> None:
        self._max_in_flight, self._max_streams = max_in_flight, max_streams
        self.num_in_flight = self.num_streams = 0

    def begin_request(self) -> None:
        """Count one more request in flight; ApiError 429 beyond the limit."""
        if self.num_in_flight >= self._max_in_flight:
            raise too_many_requests("requests", self._max_in_flight)
        self.num_in_flight += 1

    def end_request(self) -> None:
        """The request was answered."""
        self.num_in_flight -= 1

    def open_stream(self) -> None:
        """Count one more open stream; ApiError 503 beyond the limit."""
        if self.num_streams >= self._max_streams:
            raise busy()
        self.num_streams += 1

    def close_stream(self) -> None:
        """The stream ended."""
        self.num_streams -= 1


SINGLETON_HEADERS = (
    b"host",
    b"authorization",
    b"content-type",
    MAX_STALENESS.encode(),
    MIN_VERSION.encode(),
)


class HttpMiddleware:
    """Answers direct routes itself, all others by the FastAPI application; counts every response."""

    def __init__(
        self,
        api: FastAPI,
        routes: RouteTable,
        *,
        authorizer: Authorizer,
        limits: RequestLimits,
        metrics: MetricsRegistry,
        access_log: AccessLog,
        max_body_bytes: int,
    ) -> None:
        self._api, self._routes, self._authorizer = api, routes, authorizer
        self._limits = limits
        self._metrics = metrics
        self._access_log = access_log
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._api(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.perf_counter()
        status = 0

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._authorize_and_answer(scope, receive, note_status)
        except (ConnectionResetError, ClientDisconnect):
            pass  # the client disconnected during its request
        except OSError as error:
            # the client disconnected, or a file shrank during the response: close the connection, keep the server
            logger.info("a response was cut short", extra={"path": scope["path"], "error": str(error)})
            if status != 0:
                raise
            await ApiError(500, "internal", "the response could not be read", "retry").response()(
                scope, receive, note_status
            )
        except Exception as error:
            converted = api_error(error, scope)
            if converted.status == 500:
                logger.exception("a request failed", extra={"path": scope["path"]})
            if status == 0:
                await converted.response()(scope, receive, note_status)
            elif converted is not error:
                raise
        finally:
            route = scope.get("springtide.route") or getattr(scope.get("route"), "path", None) or "none"
            seconds = time.perf_counter() - started
            self._metrics.observe("springtide_http_request_duration_seconds", seconds, route=route)
            self._metrics.increment("springtide_http_requests_total", route=route, status=str(status or 499))
            self._access_log.record(scope["method"], route, status or 499, seconds)
            self.count_rejection(scope.get("springtide.error_code", ""))

    def count_rejected_connection(self, error: ApiError) -> None:
        """Count a connection that was closed with an error before a request of it could be answered."""
        self._metrics.increment("springtide_http_requests_total", route="none", status=str(error.status))
        self.count_rejection(error.code)

    def count_rejection(self, code: str) -> None:
        """Count a request that was not served, by its error code."""
        if reason := REJECTION_REASONS.get(code):
            self._metrics.increment("springtide_requests_rejected_total", reason=reason)

    async def _authorize_and_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if len(headers) < len(scope["headers"]):
            _check_singletons(scope["headers"])
        self._authorizer.check(path, headers)
        if path in self._routes.unthrottled:
            await self._answer(headers, scope, receive, send)
            return
        self._limits.begin_request()
        try:
            await self._answer(headers, scope, receive, send)
        finally:
            self._limits.end_request()

    async def _answer(self, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise body_too_large(self._max_body_bytes)
        encoding = headers.get("content-encoding")
        if encoding is not None and encoding.strip().lower() != "identity" and scope["method"] not in ("GET", "HEAD"):
            raise unsupported_encoding(encoding)
        receive = self._limited(receive)
        if (direct := self._routes.find_direct(scope["method"], scope["path"])) is None:
            await self._api(scope, receive, send)
            return
        route, arguments = direct
        scope["app"], scope["springtide.route"] = self._api, route.documented_path
        response = await route.endpoint(Request(scope, receive), *arguments)
        await response(scope, receive, send)

    def _limited(self, receive: Receive) -> Receive:
        left = self._max_body_bytes

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise body_too_large(self._max_body_bytes)
            return message

        return limited


def _check_singletons(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise ApiError 400 if an important header is repeated: a proxy may have used the other one."""
    names = Counter(name.lower() for name, _ in headers)
    for name in SINGLETON_HEADERS:
        if names[name] > 1:
            raise bad_request(f"the header {name.decode()} occurs {names[name]} times", "send it once")
