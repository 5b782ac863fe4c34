"""Many rows in one request: what its headers ask for, the lookup in a view, and the response."""

# N ids of a request
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.app.serving.http.errors import ApiError, no_such_feature
from springtide.app.serving.http.preconditions import Preconditions, parse_preconditions
from springtide.app.serving.http.route import JSON, RAW
from springtide.app.serving.lookup.codecs import LookupRequest, encode_response
from springtide.app.serving.lookup.content_negotiation import MediaType, negotiate_media_type, parse_content_type
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide_client.model.view import STATUS_NAMES

# within these limits a lookup costs less than passing it to a thread: ids, and numbers written as JSON text
INLINE_IDS, INLINE_JSON_NUMBERS = 1_024, 16_384


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


def runs_inline(view: ServedView, options: LookupOptions, num_ids: int) -> bool:
    """Return True if the lookup is small enough for the event loop's thread, and asks no other server."""
    return not view.part.is_router and is_small(view, options, num_ids)


def is_small(view: ServedView, options: LookupOptions, num_ids: int) -> bool:
    """Return True if the lookup's response is written in less time than another thread would take."""
    if num_ids > INLINE_IDS or options.response_type.name != JSON:
        return num_ids <= INLINE_IDS
    return num_ids * view.dim_of(view.feature_numbers[options.feature]) <= INLINE_JSON_NUMBERS


def look_up(
    view: ServedView, number: int, options: LookupOptions, request: LookupRequest
) -> tuple[bytes | memoryview, npt.NDArray[np.uint8]]:
    """The body of the response, and the status [N] of each id; ApiError 421 where another server answers for one."""
    view.part.check_owned(number, request.ids_N)
    media_type = options.response_type
    if media_type.name == RAW and not media_type.float16:  # rows and status lie in memory as they are sent
        packed = view.lookup_packed(number, request.ids_N)
        return packed.data, packed[len(packed) - len(request.ids_N) :]
    rows_ND, status_N = view.lookup(number, request.ids_N)
    body = encode_response(media_type, request, rows_ND, status_N, feature=options.feature, version=view.version)
    return body, status_N


def encode_packed(
    view: ServedView, options: LookupOptions, request: LookupRequest, packed: npt.NDArray[np.uint8]
) -> tuple[bytes | memoryview, npt.NDArray[np.uint8]]:
    """Encode rows and status that lie one after the other in bytes, as `lookup_packed` returns them."""
    media_type, num_ids = options.response_type, len(request.ids_N)
    status_N = packed[len(packed) - num_ids :]
    if media_type.name == RAW and not media_type.float16:
        return packed.data, status_N
    dim = view.dim_of(view.feature_numbers[options.feature])
    rows_ND = packed[: len(packed) - num_ids].copy().view(np.float32).reshape(num_ids, dim)
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


def count_rows(metrics: MetricsRegistry, status_N: npt.NDArray[np.uint8]) -> None:
    """Count looked-up rows by status, so that a missing row is never silent."""
    counts = np.bincount(status_N, minlength=len(STATUS_NAMES))
    for name, count in zip(STATUS_NAMES, counts.tolist(), strict=False):
        if count:
            metrics.increment("springtide_lookup_rows_total", count, status=name)
