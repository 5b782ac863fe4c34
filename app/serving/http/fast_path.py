"""Look-ups whose head is byte for byte one that was understood before: answered where their bytes arrive.

The front understands a request, checks who asks, and leaves its head here. The next request with the same head differs
in its ids alone. Whatever is not plain, refusals above all, goes the front's way.
"""

import logging
import time
from typing import NamedTuple

import numpy as np
from starlette.types import Scope

from app.serving.config import ServeConfig
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
from app.serving.lookup.codecs import STATUS_NAMES, decode_request
from app.serving.model.replica import Replica
from app.serving.ops.registry import MetricsRegistry

ROUTE = "/v1/embeddings/{feature}"
REQUEST_PREFIX = b"POST /v1/embeddings/"
MAX_HEADS, MAX_HEAD_BYTES = 1_024, 2_048
# with one of these a head asks for more than an answer
UNSUPPORTED_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

logger = logging.getLogger(__name__)


class CachedHead(NamedTuple):
    """What a head means."""

    manner: LookupOptions
    body_bytes: int


class FastPath:
    """The heads that are known. For the event loop's thread alone."""

    def __init__(self, config: ServeConfig, replica: Replica, metrics: MetricsRegistry, access_log: AccessLog) -> None:
        self._max_ids = min(config.max_ids, INLINE_IDS)
        self._replica = replica
        self._access_log = access_log
        self._heads: dict[bytes, CachedHead] = {}
        self._seconds = metrics.unlocked_histogram("springtide_http_seconds", route=ROUTE)
        self._answers = metrics.unlocked_counter("springtide_http_answers_total", route=ROUTE, status="200")
        self._rows = [metrics.unlocked_counter("springtide_rows_total", status=name) for name in STATUS_NAMES]

    def __len__(self) -> int:
        return len(self._heads)

    def remember(self, data: bytes, scope: Scope, manner: LookupOptions, body: bytes) -> None:
        """A request that came in this data was answered, read by the real parser and allowed by the guard."""
        body_at = data.find(b"\r\n\r\n") + 4
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        # where the parser has seen the body begin, this must see it too
        if data[body_at:] != body or (b"content-length", str(len(body)).encode()) not in headers:
            return
        if body_at > MAX_HEAD_BYTES or scope["http_version"] != "1.1":
            return
        if any(
            name in UNSUPPORTED_HEADERS or (name == b"connection" and text.lower() != b"keep-alive")
            for name, text in headers
        ):
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()  # those that are still asked with come back at their next request
        self._heads[data[:body_at]] = CachedHead(manner, len(body))

    def respond(self, data: bytes) -> tuple[str, bytes | memoryview] | None:
        """Head (without status line and the server's own headers) and body of the answer to a whole request.

        None where the head is unknown, or the request needs the front.
        """
        started = time.perf_counter()
        body_at = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:body_at])
        if known is None or len(data) - body_at != known.body_bytes:
            return None
        manner = known.manner
        try:
            question = decode_request(manner.request_type, data[body_at:], self._max_ids)
            view = self._replica.view_if_satisfying(manner.preconditions.with_max_staleness(question.max_staleness_ms))
            if view is None or not runs_inline(view, manner, len(question.ids_N)):
                return None
            content, status_N = look_up(view, feature_number(view, manner), manner, question)
        except ApiError:
            return None  # the front finds the same, and says so
        except Exception:
            logger.exception("a known head failed")  # the front has a better place for it
            return None
        texts = response_headers(self._replica, view, manner, len(content))
        lines = "".join([f"{name.lower()}: {text}\r\n" for name, text in texts.items()])
        num_known = len(status_N) - int(np.count_nonzero(status_N))
        self._rows[0].amount += num_known
        if num_known < len(status_N):
            for tally, count in zip(self._rows[1:], np.bincount(status_N, minlength=4)[1:].tolist(), strict=True):
                tally.amount += count
        self._answers.amount += 1
        seconds = time.perf_counter() - started
        self._seconds.observe(seconds)
        self._access_log.record("POST", ROUTE, 200, seconds)
        return lines, content
