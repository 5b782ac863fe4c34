"""The fast path: requests whose head is byte for byte a known one are answered as their bytes arrive.

The first request with a head takes the normal path: it is parsed, authorized, answered, and its head is remembered. The
next one with the same head differs only in its body. Errors and everything unusual are left to the normal path.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple

from starlette.types import Scope

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.middleware import AccessLog
from springtide.app.serving.metrics.registry import MetricsRegistry, UnlockedCounter, UnlockedHistogram

REQUEST_PREFIX = b"POST /v1/"
MAX_HEADS, MAX_HEAD_BYTES = 1_024, 2_048
MAX_REQUEST_BYTES = 65_536  # longer ones are not waited for: their bodies are read as they arrive
# a head with one of these asks for more than a response
UNSUPPORTED_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
# a head is known whatever its length of the body
LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r\n")

logger = logging.getLogger(__name__)


# the header lines and the body of a response. The lines lack the status line and the server's default headers
Response = tuple[str, bytes | memoryview]
# the headers and the body of a response
Content = tuple[Mapping[str, str], bytes | memoryview]
# what `respond` returns where the response comes later
LATER: Final = "later"
# Returns the response to a body; None where the normal path has to answer; LATER where the function that it is given
# with the body hears one of the two later.
Answer = Callable[[bytes, Callable[[Content | None], None]], Content | str | None]


class KnownHead(NamedTuple):
    """A head seen before, and who answers."""

    answer: Answer
    route: str
    seconds: UnlockedHistogram
    responses: UnlockedCounter


class FastPath:
    """The known heads. For the event loop's thread alone."""

    def __init__(self, metrics: MetricsRegistry, access_log: AccessLog) -> None:
        self._metrics, self._access_log = metrics, access_log
        self._heads: dict[bytes, KnownHead] = {}  # without the value of Content-Length
        self._counters: dict[str, tuple[UnlockedHistogram, UnlockedCounter]] = {}

    def remember(self, scope: Scope, body: bytes, answer: Answer) -> None:
        """Remember the head of a request that was authorized and answered with 200; others like it `answer` answers."""
        data: bytes | None = scope.get("springtide.data")
        if data is None or not _is_plain(data, scope, body):
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()  # those still in use are remembered again at their next request
        route: str = scope["springtide.route"]
        if route not in self._counters:
            self._counters[route] = (
                self._metrics.unlocked_histogram("springtide_http_request_duration_seconds", route=route),
                self._metrics.unlocked_counter("springtide_http_requests_total", route=route, status="200"),
            )
        key, _, _ = _split(data)
        self._heads[key] = KnownHead(answer, route, *self._counters[route])

    def respond(self, data: bytes, later: Callable[[Response | None], None]) -> Response | str | int | None:
        """The response, if `data` is one whole request with a known head. None means: take the normal path.

        LATER if the response has to wait for other work: `later` is then called with it, or with None. If the head is
        known and a part of the body has not come yet, the number of bytes that are missing, unless the body is long.
        """
        started = time.perf_counter()
        key, body_start, num_bytes = _split(data)
        known = self._heads.get(key)
        if known is None or len(data) > num_bytes:
            return None
        if len(data) < num_bytes:
            return num_bytes - len(data) if num_bytes <= MAX_REQUEST_BYTES else None
        try:
            content = known.answer(data[body_start:], partial(self._found, known, started, later))
        except ApiError:
            return None  # the normal path finds the same error and reports it
        except Exception:
            logger.exception("the fast path failed")  # the normal path has a client to report it to
            return None
        return content if content is None or isinstance(content, str) else self._responded(known, started, content)

    def _found(
        self, known: KnownHead, started: float, later: Callable[[Response | None], None], content: Content | None
    ) -> None:
        later(None if content is None else self._responded(known, started, content))

    def _responded(self, known: KnownHead, started: float, content: Content) -> Response:
        headers, body = content
        lines = "".join([f"{name.lower()}: {value}\r\n" for name, value in headers.items()])
        known.responses.amount += 1
        seconds = time.perf_counter() - started
        known.seconds.observe(seconds)
        self._access_log.record("POST", known.route, 200, seconds)
        return lines, body


def _split(data: bytes) -> tuple[bytes, int, int]:
    """Return the head of a request without its Content-Length, where the body begins, and where it ends."""
    body_start = data.find(b"\r\n\r\n") + 4
    if body_start > MAX_HEAD_BYTES:
        return b"", 0, 0
    key, num_bytes = _split_head(data[:body_start])
    return (key, body_start, body_start + num_bytes) if key else (b"", 0, 0)


@lru_cache(maxsize=MAX_HEADS)
def _split_head(head: bytes) -> tuple[bytes, int]:
    """Return a head without its Content-Length, and that length; nothing and 0 for one that has none."""
    length = LENGTH.search(head)
    return (b"", 0) if length is None else (head[: length.start(1)] + head[length.end(1) :], int(length[1]))


def _is_plain(data: bytes, scope: Scope, body: bytes) -> bool:
    """Return True if the head of a request that arrived as `data` may be remembered."""
    _, body_start, num_bytes = _split(data)
    # the body must begin and end where the real parser has found it
    if not body_start or num_bytes != len(data) or data[body_start:] != body:
        return False
    if scope["http_version"] != "1.1":
        return False
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return [name for name, _ in headers].count(b"content-length") == 1 and not any(
        name in UNSUPPORTED_HEADERS or (name == b"connection" and value.lower() != b"keep-alive")
        for name, value in headers
    )
