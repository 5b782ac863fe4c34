"""Errors: every error response of the server is {"error": {"code", "message", "hint"}}."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from springtide_client.errors import PartError, VersionsDifferError

VERSION_NOT_REACHED = "version_not_reached"
# what decoding a body may raise: msgspec reports strings that are not UTF-8 as Python does
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

# the reason of springtide_requests_rejected_total, by code; failed preconditions are counted by the replica
REJECTION_REASONS = {
    "busy": "busy",
    "not_ready": "not_ready",
    "too_many_requests": "in_flight",
    "request_timeout": "timeout",
    "too_large": "size",
    "too_many_ids": "size",
    "head_too_large": "size",
    "too_many_instances": "size",
    "unauthorized": "token",
    "forbidden": "token",
    "foreign_host": "host",
    "misdirected": "part",
    "part_unavailable": "part",
    "versions_differ": "part",
}


ERROR_DESCRIPTIONS = {
    400: "A header or the body is malformed.",
    401: "The token is missing or not known to this server.",
    403: "The token lacks the scope.",
    404: "Not found; for a row, its status says why.",
    406: "No media type of the Accept header is supported.",
    408: "The request did not arrive whole in time.",
    409: "This server serves one version only, and has nothing for followers.",
    410: "The version or file is no longer, or not yet, in the log.",
    413: "The body, or the number of ids or instances, exceeds the limit.",
    415: "The media type or encoding of the body is not supported.",
    421: "Another server holds these rows; or, without tokens, a Host header that is not local.",
    422: "Understood, but not possible; `index` is that of the invalid element.",
    429: "Too many requests at once: retry after the seconds in Retry-After.",
    431: "The head of the request exceeds the limit.",
    500: "A defect of the server.",
    501: "The trainer of this log does not support this command, or this server holds only a part of the rows.",
    503: "Not ready, too busy, or a precondition failed: retry after the seconds in Retry-After.",
    507: "The snapshot is larger than [serve] snapshot_bytes, or the disk is full.",
}


class ErrorInfo(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A mistake; `index` and `field` say where in the request, `range` and `address` who holds the rows."""

    code: Annotated[str, msgspec.Meta(description="Stable, for programs.")]
    message: str
    hint: Annotated[str, msgspec.Meta(description="What to do about it.")]
    index: int | msgspec.UnsetType = msgspec.UNSET
    field: str | msgspec.UnsetType | None = msgspec.UNSET
    range: str | msgspec.UnsetType = msgspec.UNSET
    address: str | msgspec.UnsetType | None = msgspec.UNSET


class ErrorResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The body of every error."""

    error: ErrorInfo


class ApiError(Exception):
    """An error response: HTTP status, a stable code, a message, and a hint that says what to do about it.

    `details` are added inside of `error`, `siblings` beside it.
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
        siblings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})
        self.details = dict(details or {})
        self.siblings = dict(siblings or {})

    def body(self) -> bytes:
        """The JSON text."""
        error = {"code": self.code, "message": self.message, "hint": self.hint, **self.details}
        return msgspec.json.encode({"error": error, **self.siblings})

    def response(self) -> Response:
        """The response."""
        return Response(self.body(), self.status, self.headers, "application/json")


def api_error(error: Exception, scope: Scope) -> ApiError:
    """Return the ApiError for an exception of a request; 500 for a defect."""
    converted = _api_error(error, scope["method"], scope["path"])
    scope["springtide.error_code"] = converted.code
    return converted


def _api_error(error: Exception, method: str, path: str) -> ApiError:
    match error:
        case ApiError():
            return error
        case VersionsDifferError():
            return versions_differ(str(error))
        case PartError():
            return part_unavailable(str(error))
        case RequestValidationError():
            faults = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
            return ApiError(422, "invalid", "; ".join(faults), "see /docs")
        case HTTPException():
            code, is_unknown = CODES_BY_STATUS.get(error.status_code, "error"), error.detail == "Not Found"
            detail = "there is no such route" if error.status_code == 404 and is_unknown else error.detail
            return ApiError(error.status_code, code, f"{method} {path}: {detail}", "see /docs", headers=error.headers)
    return ApiError(500, "internal", "this server has a defect", "see the server's log")


def bad_request(message: str, hint: str = "") -> ApiError:
    """400: a header, a parameter or a body that cannot be understood."""
    return ApiError(400, "bad_request", message, hint)


def no_such_feature(feature: str, known: tuple[str, ...]) -> ApiError:
    """404: the schema has no id feature of this name."""
    hint = f"the id features are {', '.join(known)}" if known else "this model has no id features"
    return ApiError(404, "no_such_feature", f"there is no feature {feature!r}", hint)


def request_timeout(seconds: float) -> ApiError:
    """408: the request did not arrive whole in time."""
    message = f"the request was not complete after {seconds:g} s"
    return ApiError(408, "request_timeout", message, "send it faster, or in several requests")


def gone(version: int, oldest: int | None) -> ApiError:
    """410: the version is not, or no longer, in the log."""
    hint = "see /v1/versions" if oldest is None else f"the oldest available version is {oldest}"
    return ApiError(410, "gone", f"version {version} is not in the log", f"{hint}; start again from /v1/bases/latest")


def refuse_if_fixed(version: int | None) -> None:
    """409 for a follower of a server that serves one version only: it would move on to others."""
    if version is not None:
        hint = "follow another server, or take /v1/snapshot"
        raise ApiError(409, "fixed_version", f"this server serves version {version} and no other", hint)


def misdirected(message: str, hint: str, details: Mapping[str, Any] | None = None) -> ApiError:
    """421: another server holds these rows."""
    return ApiError(421, "misdirected", message, hint, details=details)


def version_gone(version: int, newest: int) -> ApiError:
    """410: a part is demanded at a version that it serves no longer."""
    message = f"version {version} is served no longer, the newest is {newest}"
    return ApiError(410, "version_gone", message, "ask for a newer version")


def version_not_reached(version: int, newest: int) -> ApiError:
    """503: a version that the server has not applied yet."""
    message = f"version {version} is not served yet, the newest is {newest}"
    hint = "retry, or wait with /v1/versions/latest?after="
    return ApiError(503, VERSION_NOT_REACHED, message, hint, headers={"Retry-After": "1"})


def part_unavailable(message: str) -> ApiError:
    """503: the server of a part gives none of its rows."""
    hint = "retry once it runs; keys of other parts are answered meanwhile"
    return ApiError(503, "part_unavailable", message, hint, headers={"Retry-After": "1"})


def versions_differ(message: str) -> ApiError:
    """503: the servers of the parts serve no version in common."""
    hint = "retry; if it stays, compare `version` and `reason` in the /v1/status of each part"
    return ApiError(503, "versions_differ", message, hint, headers={"Retry-After": "1"})


def body_too_large(max_bytes: int) -> ApiError:
    """413: the body exceeds the limit."""
    return ApiError(413, "too_large", f"the body is longer than {max_bytes} bytes", "send it in several requests")


def too_many_ids(number: int, max_ids: int) -> ApiError:
    """413: more ids than one request may have."""
    message = f"{number} ids in one request, the limit is {max_ids}"
    return ApiError(413, "too_many_ids", message, "send several requests")


def unsupported_encoding(encoding: str) -> ApiError:
    """415: a compressed body, which would be read as something else."""
    message = f"a body with Content-Encoding {encoding[:40]} is not supported"
    return ApiError(415, "unsupported_media_type", message, "send the body without Content-Encoding")


def invalid(message: str, hint: str = "") -> ApiError:
    """422: understood, but not possible."""
    return ApiError(422, "invalid", message, hint)


def too_many_requests(what: str, limit: int) -> ApiError:
    """429: more at once than the server accepts."""
    hint = "retry after a moment, or send fewer at once"
    return ApiError(429, "too_many_requests", f"more than {limit} {what} at once", hint, headers={"Retry-After": "1"})


def head_too_large(max_bytes: int) -> ApiError:
    """431: the head of the request exceeds the limit."""
    message = f"the head of the request is longer than {max_bytes} bytes"
    return ApiError(431, "head_too_large", message, "send fewer or shorter headers")


def not_ready(reason: str) -> ApiError:
    """503: no version can be served yet."""
    hint = "retry; /readyz turns 200 once a version is served"
    return ApiError(503, "not_ready", reason, hint, headers={"Retry-After": "1"})


def busy() -> ApiError:
    """503: a queue of the server is full."""
    hint = "retry after a moment, or send fewer requests at once"
    return ApiError(503, "busy", "too many requests are waiting", hint, headers={"Retry-After": "1"})
