"""The fast path of batch lookups: requests whose head is byte for byte a known one are answered as their bytes arrive.

The first request with a head takes the normal path: it is parsed, authorized, answered, and its head is remembered. The
next one with the same head differs only in its ids. Errors and everything unusual are left to the normal path.
"""

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from starlette.types import Scope

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.middleware import AccessLog
from springtide.app.serving.lookup.batch_lookup import (
    INLINE_IDS,
    LookupOptions,
    encode_packed,
    feature_number,
    is_small,
    look_up,
    response_headers,
)
from springtide.app.serving.lookup.codecs import LookupRequest, decode_request
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.lookup_batcher import LookupBatcher
from springtide_client.array_types import UInt8Array
from springtide_client.model.view import STATUS_NAMES
from springtide_client.parts.row_request import ROUTE as PART_ROUTE

ROUTE = "/v1/embeddings/{feature}"
REQUEST_PREFIXES = (b"POST /v1/embeddings/", b"POST " + PART_ROUTE.encode())
MAX_HEADS, MAX_HEAD_BYTES = 1_024, 2_048
MAX_REQUEST_BYTES = 65_536  # longer ones are not waited for: their bodies are read as they arrive
# a head with one of these asks for more than a response
UNSUPPORTED_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
# how requests for rows of a part end their heads: they are known whatever the length of the body
LENGTH, LENGTH_LINE = b"\r\nContent-Length: ", re.compile(rb"([0-9]{1,9})\r\n\r\n")

logger = logging.getLogger(__name__)


# the header lines and the body of a response. The lines lack the status line and the server's default headers
Response = tuple[str, bytes | memoryview]
# what `respond` returns where the response comes later
LATER: Final = "later"
# the headers and the body of a response, None where the normal path has to answer
Answer = Callable[[bytes], tuple[dict[str, str], bytes | memoryview] | None]


class CachedHead(NamedTuple):
    """A head seen before, and its meaning: a batch lookup with these options."""

    body_bytes: int
    options: LookupOptions


class FastPath:
    """The known heads. For the event loop's thread alone."""

    def __init__(
        self,
        replica: Replica,
        metrics: MetricsRegistry,
        access_log: AccessLog,
        *,
        max_ids: int,
        batcher: LookupBatcher | None = None,
    ) -> None:
        """`batcher` finds rows that other servers hold, for a router."""
        self._max_ids = min(max_ids, INLINE_IDS)
        self._replica, self._batcher = replica, batcher
        self._access_log = access_log
        self._heads: dict[bytes, CachedHead] = {}
        self._part_heads: dict[bytes, Answer] = {}  # without the value of Content-Length
        self._seconds = metrics.unlocked_histogram("springtide_http_request_duration_seconds", route=ROUTE)
        self._responses = metrics.unlocked_counter("springtide_http_requests_total", route=ROUTE, status="200")
        self._part_seconds = metrics.unlocked_histogram("springtide_http_request_duration_seconds", route=PART_ROUTE)
        self._part_responses = metrics.unlocked_counter(
            "springtide_http_requests_total", route=PART_ROUTE, status="200"
        )
        self._rows = [metrics.unlocked_counter("springtide_lookup_rows_total", status=name) for name in STATUS_NAMES]

    def remember(self, data: bytes, scope: Scope, options: LookupOptions, body: bytes) -> None:
        """Remember the head of a request that arrived as `data`, was authorized, and was answered with 200."""
        if _is_plain(data, scope, body):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()  # those still in use are remembered again at their next request
            self._heads[data[: len(data) - len(body)]] = CachedHead(len(body), options)

    def remember_rows(self, data: bytes, scope: Scope, body: bytes, answer: Answer) -> None:
        """Remember the head of a request for rows of a part, which `answer` answers."""
        head_end = data.find(LENGTH)
        length = LENGTH_LINE.match(data, head_end + len(LENGTH))
        lengths = [name for name, _ in scope["headers"] if name == b"content-length"]
        if length is None or length.end() != len(data) - len(body) or len(lengths) != 1:
            return  # it is not the last header
        if _is_plain(data, scope, body):
            if len(self._part_heads) >= MAX_HEADS:
                self._part_heads.clear()
            self._part_heads[data[:head_end]] = answer

    def respond(self, data: bytes, later: Callable[[Response | None], None]) -> Response | str | None:
        """The response, if `data` is one whole request with a known head. None means: take the normal path.

        LATER where it needs rows of other servers: then `later` hears it, or None.
        """
        started = time.perf_counter()
        body_start = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:body_start])
        if known is None:
            return self._rows_of_part(data, started) if self._part_heads else None
        if len(data) - body_start != known.body_bytes:
            return None
        options = known.options
        try:
            request = decode_request(options.request_type, data[body_start:], self._max_ids)
            view = self._replica.view_if_satisfying(options.preconditions.with_max_staleness(request.max_staleness_ms))
            if view is None or not is_small(view, options, len(request.ids_N)):
                return None
            if self._batcher is not None:
                found = partial(self._found, view, options, request, started, later)
                return (
                    LATER if self._batcher.submit(view, feature_number(view, options), request.ids_N, found) else None
                )
            content, status_N = look_up(view, feature_number(view, options), options, request)
        except ApiError:
            return None  # the normal path finds the same error and reports it
        except Exception:
            logger.exception("the fast path failed")  # the normal path has a client to report it to
            return None
        return self._responded(view, options, content, status_N, started)

    def num_missing(self, data: bytes) -> int:
        """How many bytes a request lacks that begins with `data`; 0 where its head is not known, or it is long."""
        body_start = data.find(b"\r\n\r\n") + 4
        if (known := self._heads.get(data[:body_start])) is not None:
            num_bytes = body_start + known.body_bytes
        else:
            head_end = data.find(LENGTH)
            length = LENGTH_LINE.match(data, head_end + len(LENGTH))
            if length is None or data[:head_end] not in self._part_heads:
                return 0
            num_bytes = length.end() + int(length[1])
        return max(0, num_bytes - len(data)) if num_bytes <= MAX_REQUEST_BYTES else 0

    def _found(
        self,
        view: ServedView,
        options: LookupOptions,
        request: LookupRequest,
        started: float,
        later: Callable[[Response | None], None],
        packed: UInt8Array | None,
    ) -> None:
        """Give `later` the response with rows of other servers."""
        response = None
        if packed is not None:
            try:
                content, status_N = encode_packed(view, options, request, packed)
                response = self._responded(view, options, content, status_N, started)
            except Exception:
                logger.exception("the fast path failed")
        later(response)

    def _responded(
        self,
        view: ServedView,
        options: LookupOptions,
        content: bytes | memoryview,
        status_N: UInt8Array,
        started: float,
    ) -> Response:
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

    def _rows_of_part(self, data: bytes, started: float) -> Response | None:
        head_end = data.find(LENGTH)
        answer = self._part_heads.get(data[:head_end])
        length = LENGTH_LINE.match(data, head_end + len(LENGTH))
        if answer is None or length is None or len(data) - length.end() != int(length[1]):
            return None
        try:
            answered = answer(data[length.end() :])
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


def _is_plain(data: bytes, scope: Scope, body: bytes) -> bool:
    """Return True if the head of a request that arrived as `data` may be remembered."""
    body_start = data.find(b"\r\n\r\n") + 4
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    # the body must begin where the real parser has found it
    if data[body_start:] != body or (b"content-length", str(len(body)).encode()) not in headers:
        return False
    if body_start > MAX_HEAD_BYTES or scope["http_version"] != "1.1":
        return False
    return not any(
        name in UNSUPPORTED_HEADERS or (name == b"connection" and value.lower() != b"keep-alive")
        for name, value in headers
    )
