"""Refusals: every error that leaves the server is {"error": {"code", "message", "hint"}}."""

from collections.abc import Mapping
from typing import Any

import msgspec

# what decoding a body may raise: msgspec reports texts that are not UTF-8 as Python does
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
CODES_BY_STATUS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    500: "internal",
}

# why a request was refused, for the metric, by code; what it demands of the version is counted by the replica
REJECTION_REASONS = {
    "busy": "busy",
    "not_ready": "not_ready",
    "too_many_requests": "in_flight",
    "too_slow": "slow",
    "too_large": "size",
    "too_many_ids": "size",
    "head_too_large": "size",
    "too_many_instances": "size",
    "unauthorized": "token",
    "forbidden": "token",
    "foreign_host": "host",
}


class ApiError(Exception):
    """An answer that is a refusal: HTTP status, a stable code, a sentence, and what to do about it.

    `details` stand inside `error`, `beside` at its side.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})
        self.details = dict(details or {})
        self.siblings = dict(beside or {})

    def body(self) -> bytes:
        """The JSON text."""
        error = {"code": self.code, "message": self.message, "hint": self.hint, **self.details}
        return msgspec.json.encode({"error": error, **self.siblings})


def not_ready(reason: str) -> ApiError:
    """503: no version can be served yet."""
    hint = "retry; /readyz turns 200 once a version is served"
    return ApiError(503, "not_ready", reason, hint, headers={"Retry-After": "1"})


def body_too_large(max_bytes: int) -> ApiError:
    """413: the body passes the limit."""
    return ApiError(413, "too_large", f"the body is longer than {max_bytes} bytes", "send it in several requests")


def unsupported_encoding(encoding: str) -> ApiError:
    """415: bytes that would be taken for others."""
    message = f"a body with Content-Encoding {encoding[:40]} is not understood here"
    return ApiError(415, "unsupported_media_type", message, "send it as it is, without Content-Encoding")


def internal_error() -> ApiError:
    """500: this should not have happened."""
    return ApiError(500, "internal", "this server has a defect", "its log says more")


def too_many_ids(number: int, max_ids: int) -> ApiError:
    """413: more ids than one request may name."""
    message = f"{number} ids in one request, the limit is {max_ids}"
    return ApiError(413, "too_many_ids", message, "send several requests")


def head_too_large(max_bytes: int) -> ApiError:
    """431: a request has more bytes around its body than any needs."""
    return ApiError(431, "head_too_large", f"the head of the request is longer than {max_bytes} bytes", "send less")


def busy() -> ApiError:
    """503: more work waits than the server takes on."""
    hint = "retry after a moment, or send fewer requests at once"
    return ApiError(503, "busy", "too many requests are waiting", hint, headers={"Retry-After": "1"})


def too_many_requests(what: str, limit: int) -> ApiError:
    """429: more at once than the server takes on."""
    hint = "retry after a moment, or ask less at once"
    return ApiError(429, "too_many_requests", f"more than {limit} {what} at once", hint, headers={"Retry-After": "1"})


def request_timeout(seconds: float) -> ApiError:
    """408: the request did not come whole in time."""
    return ApiError(408, "too_slow", f"the request was not whole after {seconds:g} s", "send it faster, or in parts")


def bad_request(message: str, hint: str = "") -> ApiError:
    """400: a header, a parameter or a body that says nothing this server understands."""
    return ApiError(400, "bad_request", message, hint)


def invalid(message: str, hint: str = "") -> ApiError:
    """422: understood, but not possible."""
    return ApiError(422, "invalid", message, hint)


def no_such_feature(feature: str, known: tuple[str, ...]) -> ApiError:
    """404: the schema has no id feature of this name."""
    hint = f"the id features are {', '.join(known)}" if known else "this model has no id features"
    return ApiError(404, "no_such_feature", f"there is no feature {feature!r}", hint)


def gone(version: int, oldest: int | None) -> ApiError:
    """410: the version is not, or no longer, in the log."""
    hint = "see /v1/versions" if oldest is None else f"the oldest version at hand is {oldest}"
    return ApiError(410, "gone", f"version {version} is not in the log", f"{hint}; start again from /v1/bases/latest")
