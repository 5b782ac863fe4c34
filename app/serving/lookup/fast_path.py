"""The fast path of batch lookups: requests whose head is byte for byte a known one are answered as their bytes arrive.

The first request with a head takes the normal path: it is parsed, authorized, answered, and its head is remembered. The
next one with the same head differs only in its ids. Errors and everything unusual are left to the normal path.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from springtide_client.model.view import STATUS_NAMES
from springtide_client.parts.row_request import ROUTE as PART_ROUTE
from starlette.types import Scope

from app.serving.http.access_log import AccessLog
from app.serving.http.errors import ApiError
from app.serving.lookup.batch_lookup import (
    INLINE_IDS,
    LookupOptions,
    feature_number,
    look_up,
    response_headers,
    runs_inline,
)
from app.serving.lookup.codecs import decode_request
from app.serving.metrics.registry import MetricsRegistry
from app.serving.model.replica import Replica

ROUTE = "/v1/embeddings/{feature}"
REQUEST_PREFIXES = (b"POST /v1/embeddings/", b"POST " + PART_ROUTE.encode())
MAX_HEADS, MAX_HEAD_BYTES = 1_024, 2_048
# a head with one of these asks for more than a response
UNSUPPORTED_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

logger = logging.getLogger(__name__)


# the headers and the body of a response, None where the normal path has to answer
Answer = Callable[[bytes], tuple[dict[str, str], bytes | memoryview] | None]


class CachedHead(NamedTuple):
    """What a known head means: a batch lookup with these options, or rows of a part."""

    body_bytes: int
    options: LookupOptions | None
    answer: Answer | None = None


class FastPath:
    """The known heads. For the event loop's thread alone."""

    def __init__(self, replica: Replica, metrics: MetricsRegistry, access_log: AccessLog, *, max_ids: int) -> None:
        self._max_ids = min(max_ids, INLINE_IDS)
        self._replica = replica
        self._access_log = access_log
        self._heads: dict[bytes, CachedHead] = {}
        self._seconds = metrics.unlocked_histogram("springtide_http_request_duration_seconds", route=ROUTE)
        self._responses = metrics.unlocked_counter("springtide_http_requests_total", route=ROUTE, status="200")
        self._part_seconds = metrics.unlocked_histogram("springtide_http_request_duration_seconds", route=PART_ROUTE)
        self._part_responses = metrics.unlocked_counter(
            "springtide_http_requests_total", route=PART_ROUTE, status="200"
        )
        self._rows = [metrics.unlocked_counter("springtide_lookup_rows_total", status=name) for name in STATUS_NAMES]

    def remember(self, data: bytes, scope: Scope, options: LookupOptions, body: bytes) -> None:
        """Remember the head of a request that arrived as `data`, was authorized, and was answered with 200."""
        self._remember(data, scope, body, CachedHead(len(body), options))

    def remember_rows(self, data: bytes, scope: Scope, body: bytes, answer: Answer) -> None:
        """The same of a request for rows of a part, which `answer` answers."""
        self._remember(data, scope, body, CachedHead(len(body), None, answer))

    def _remember(self, data: bytes, scope: Scope, body: bytes, known: CachedHead) -> None:
        body_start = data.find(b"\r\n\r\n") + 4
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        # the body must begin where the real parser has found it
        if data[body_start:] != body or (b"content-length", str(len(body)).encode()) not in headers:
            return
        if body_start > MAX_HEAD_BYTES or scope["http_version"] != "1.1":
            return
        if any(
            name in UNSUPPORTED_HEADERS or (name == b"connection" and value.lower() != b"keep-alive")
            for name, value in headers
        ):
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()  # those still in use are remembered again at their next request
        self._heads[data[:body_start]] = known

    def respond(self, data: bytes) -> tuple[str, bytes | memoryview] | None:
        """The header lines and the body of the response, if `data` is one whole request with a known head.

        The lines lack the status line and the server's default headers. None means: take the normal path.
        """
        started = time.perf_counter()
        body_start = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:body_start])
        if known is None or len(data) - body_start != known.body_bytes:
            return None
        options = known.options
        if options is None:
            return self._rows_of_part(known, data[body_start:], started)
        try:
            request = decode_request(options.request_type, data[body_start:], self._max_ids)
            view = self._replica.view_if_satisfying(options.preconditions.with_max_staleness(request.max_staleness_ms))
            if view is None or not runs_inline(view, options, len(request.ids_N)):
                return None
            content, status_N = look_up(view, feature_number(view, options), options, request)
        except ApiError:
            return None  # the normal path finds the same error and reports it
        except Exception:
            logger.exception("the fast path failed")  # the normal path has a client to report it to
            return None
        headers = response_headers(self._replica, view, options, len(content))
        lines = "".join([f"{name.lower()}: {value}\r\n" for name, value in headers.items()])
        num_known = len(status_N) - int(np.count_nonzero(status_N))
        self._rows[0].amount += num_known
        if num_known < len(status_N):
            for counter, count in zip(self._rows[1:], np.bincount(status_N, minlength=4)[1:].tolist(), strict=True):
                counter.amount += count
        self._responses.amount += 1
        seconds = time.perf_counter() - started
        self._seconds.observe(seconds)
        self._access_log.record("POST", ROUTE, 200, seconds)
        return lines, content

    def _rows_of_part(self, known: CachedHead, body: bytes, started: float) -> tuple[str, bytes | memoryview] | None:
        assert known.answer is not None
        try:
            answered = known.answer(body)
        except Exception:
            logger.exception("the fast path failed")  # the normal path has a client to report it to
            return None
        if answered is None:
            return None
        headers, content = answered
        lines = "".join([f"{name.lower()}: {value}\r\n" for name, value in headers.items()])
        self._part_responses.amount += 1
        seconds = time.perf_counter() - started
        self._part_seconds.observe(seconds)
        self._access_log.record("POST", PART_ROUTE, 200, seconds)
        return lines, content
