"""Many rows in one request: what its headers ask for, the lookup in a view, and the response.

Requests whose head was seen before are answered by KnownLookups, for the fast path.
"""

# N ids of a request
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from springtide.app.serving.http.errors import ApiError, no_such_feature
from springtide.app.serving.http.fast_path import LATER, Content
from springtide.app.serving.http.preconditions import Preconditions, parse_preconditions
from springtide.app.serving.http.route import JSON, RAW
from springtide.app.serving.lookup.codecs import LookupRequest, decode_request, encode_response
from springtide.app.serving.lookup.content_negotiation import MediaType, negotiate_media_type, parse_content_type
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.lookup_batcher import LookupBatcher
from springtide_client.array_types import UInt8Array
from springtide_client.model.view import STATUS_NAMES

# within these limits a lookup costs less than passing it to a thread: ids, and numbers written as JSON text
INLINE_IDS, INLINE_JSON_NUMBERS = 1_024, 16_384

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LookupOptions:
    """Options of a request, apart from its ids."""

    feature: str
    request_type: MediaType
    response_type: MediaType
    preconditions: Preconditions

    @staticmethod
    def from_headers(feature: str, headers: Mapping[str, str]) -> "LookupOptions":
        """Parse headers, whose names are in lower case; ApiError 400, 406 or 415 for what is not supported."""
        request_type = parse_content_type(headers.get("content-type", ""))
        response_type = negotiate_media_type(headers.get("accept", ""), request_type)
        return LookupOptions(feature, request_type, response_type, parse_preconditions(headers))


def feature_number(view: ServedView, options: LookupOptions) -> int:
    """The number of the feature in keys; ApiError 404 for an unknown feature, 415 if its ids cannot be sent raw."""
    number = view.feature_numbers.get(options.feature)
    if number is None:
        raise no_such_feature(options.feature, view.schema.features)
    if RAW in (options.request_type.name, options.response_type.name) and view.has_id_strings(number):
        hint = "use application/json, application/msgpack or application/vnd.apache.arrow.stream"
        message = f"the ids of {options.feature} are strings and cannot be sent as raw int64"
        raise ApiError(415, "unsupported_media_type", message, hint)
    return number


def is_small(view: ServedView, options: LookupOptions, num_ids: int) -> bool:
    """Return True if the lookup's response is written in less time than another thread would take."""
    if num_ids > INLINE_IDS or options.response_type.name != JSON:
        return num_ids <= INLINE_IDS
    return num_ids * view.dim_of(view.feature_numbers[options.feature]) <= INLINE_JSON_NUMBERS


def look_up(
    view: ServedView, number: int, options: LookupOptions, request: LookupRequest
) -> tuple[bytes | memoryview, UInt8Array]:
    """The body of the response, and the status [N] of each id; ApiError 421 where another server answers for one."""
    view.part.check_owned(number, request.ids_N)
    return encode_packed(view, options, request, view.lookup_packed(number, request.ids_N))


def encode_packed(
    view: ServedView, options: LookupOptions, request: LookupRequest, packed: UInt8Array
) -> tuple[bytes | memoryview, UInt8Array]:
    """Encode rows and status that lie one after the other in bytes, as `lookup_packed` returns them."""
    media_type, num_ids = options.response_type, len(request.ids_N)
    status_N = packed[len(packed) - num_ids :]
    if media_type.name == RAW and not media_type.float16:
        return packed.data, status_N
    dim = view.dim_of(view.feature_numbers[options.feature])
    rows_ND = packed[: len(packed) - num_ids].view(np.float32).reshape(num_ids, dim)
    if not rows_ND.flags.aligned:  # it lies after another look-up's status
        rows_ND = rows_ND.copy()
    body = encode_response(media_type, request, rows_ND, status_N, feature=options.feature, version=view.version)
    return body, status_N


def response_headers(replica: Replica, view: ServedView, options: LookupOptions, num_bytes: int) -> dict[str, str]:
    """The headers of a response whose body has `num_bytes`."""
    media_type = options.response_type
    headers = {
        "content-type": f"{RAW};dtype=float16" if media_type.float16 else media_type.name,
        "content-length": str(num_bytes),
        **replica.version_headers(view),
    }
    if media_type.name == RAW:
        headers["X-Springtide-Dim"] = str(view.dim_of(view.feature_numbers[options.feature]))
    return headers


class RowCounters:
    """Counts looked-up rows by status, so that a missing row is never silent. For the event loop's thread alone."""

    def __init__(self, metrics: MetricsRegistry) -> None:
        self._counters = [
            metrics.unlocked_counter("springtide_lookup_rows_total", status=name) for name in STATUS_NAMES
        ]

    def add(self, status_N: UInt8Array) -> None:
        """Count the rows of an answer."""
        num_known = len(status_N) - int(np.count_nonzero(status_N))
        self._counters[0].amount += num_known
        if num_known < len(status_N):
            for counter, count in zip(self._counters[1:], np.bincount(status_N, minlength=4)[1:].tolist(), strict=True):
                counter.amount += count


class KnownLookups:
    """Answers small look-ups for the fast path. For the event loop's thread alone."""

    def __init__(self, replica: Replica, counts: RowCounters, batcher: LookupBatcher | None, *, max_ids: int) -> None:
        """`batcher` finds rows that other servers hold, for a router."""
        self._replica, self._counts, self._batcher = replica, counts, batcher
        self._max_ids = min(max_ids, INLINE_IDS)

    def answer(
        self, options: LookupOptions, body: bytes, later: Callable[[Content | None], None]
    ) -> Content | str | None:
        """Answer a body as springtide.app.serving.http.fast_path.Answer says; ApiError is left to the normal path."""
        request = decode_request(options.request_type, body, self._max_ids)
        view = self._replica.view_if_satisfying(options.preconditions.with_max_staleness(request.max_staleness_ms))
        if view is None or not is_small(view, options, len(request.ids_N)):
            return None
        number = feature_number(view, options)
        if self._batcher is None:
            return self._content(view, options, *look_up(view, number, options, request))

        def found(packed: UInt8Array | None) -> None:
            content = None
            if packed is not None:
                try:
                    content = self._content(view, options, *encode_packed(view, options, request, packed))
                except Exception:
                    logger.exception("the fast path failed")  # the normal path has a client to report it to
            later(content)

        return LATER if self._batcher.submit(view, number, request.ids_N, found) else None

    def _content(
        self, view: ServedView, options: LookupOptions, body: bytes | memoryview, status_N: UInt8Array
    ) -> Content:
        self._counts.add(status_N)
        return response_headers(self._replica, view, options, len(body)), body
