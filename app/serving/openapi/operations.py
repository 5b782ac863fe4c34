"""The operations of /openapi.json beyond their parameters: bodies, headers, responses, errors, tokens.

FastAPI knows only part of them: routes read their bodies themselves, and batch lookups are answered before FastAPI.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from springtide.app.serving.http.authorization import UNTHROTTLED_PATHS, scope_of
from springtide.app.serving.lookup.content_negotiation import ARROW, JSON, MSGPACK, RAW
from springtide.app.serving.openapi.schemas import SCHEMAS, STRING, JsonSchema, ref

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
ABOUT_BATCH_LOOKUP = """{"ids": [...], "max_staleness_ms": 500}

By Content-Type and Accept: application/json, application/msgpack (vectors: one bin of N x dim float32),
application/vnd.apache.arrow.stream (column id in; id, status, vector out) or application/octet-stream
(little-endian int64 in; N x dim float32, or ;dtype=float16, then N status bytes out: 0 known, 1 unknown,
2 not_admitted, 3 forgotten; integer ids only).
"""
Headers = dict[str, tuple[JsonSchema, str]]
BINARY: JsonSchema = {"type": "string", "format": "binary"}
PRECONDITION_HEADERS: Headers = {
    "X-Springtide-Max-Staleness-Ms": (
        {"type": "number", "minimum": 0},
        "Respond with 503 if the served version is staler.",
    ),
    "X-Springtide-Min-Version": ({"type": "integer"}, "Respond with 503 if the served version is older."),
}
ETAGS: Headers = {"If-None-Match": ({"type": "string"}, "Respond with 304 if this is the ETag.")}
RANGES: Headers = ETAGS | {
    "Range": ({"type": "string"}, "bytes=first-last; one range."),
    "If-Range": ({"type": "string"}, "The ETag that the range belongs to; if it has changed, the whole file is sent."),
}


@dataclass(frozen=True)
class Operation:
    """One method of a path: its request, its successful response by media type, other statuses, and errors."""

    response: dict[str, JsonSchema]
    errors: tuple[int, ...] = ()
    status: int = 200
    others: dict[int, str] = field(default_factory=dict)
    body: dict[str, JsonSchema] | None = None
    headers: Headers = field(default_factory=dict)
    response_headers: tuple[str, ...] = ()  # of the successful response
    not_found: str = "Error"  # the schema of a 404


VERSION_HEADER = ("X-Springtide-Version",)
NOT_MODIFIED = {304: "Not modified: If-None-Match names the present one."}
FILE_STATUSES = NOT_MODIFIED | {416: "The range begins beyond the end, which is in Content-Range."}
FILE = Operation({RAW: BINARY}, (404, 410, 503), headers=RANGES, response_headers=("ETag",), others=FILE_STATUSES)
ROW = Operation(
    {JSON: ref("Row")},
    (400, 404, 421, 422, 503),
    headers=PRECONDITION_HEADERS,
    response_headers=VERSION_HEADER,
    not_found="AbsentRow",
)
COMMAND_ERRORS = (400, 413, 422, 501, 503)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/v1/embeddings/{feature}"): ROW,
    ("get", "/v1/embeddings/{feature}/{id}"): ROW,
    ("post", "/v1/embeddings/{feature}"): Operation(
        {JSON: ref("LookupResponse"), MSGPACK: ref("PackedLookupResponse"), ARROW: BINARY, RAW: BINARY},
        (400, 404, 406, 413, 415, 421, 422, 503),
        body={JSON: ref("LookupRequest"), MSGPACK: ref("LookupRequest"), ARROW: BINARY, RAW: BINARY},
        headers=PRECONDITION_HEADERS,
        response_headers=VERSION_HEADER,
    ),
    ("get", "/v1/embeddings/{feature}/{id}/neighbors"): Operation(
        {JSON: ref("Neighbors")},
        (400, 404, 422, 501, 503),
        headers=PRECONDITION_HEADERS,
        response_headers=VERSION_HEADER,
        not_found="AbsentRow",
    ),
    ("post", "/v1/predict"): Operation(
        {JSON: ref("Predictions")},
        (400, 413, 421, 422, 503),
        body={JSON: ref("PredictRequest")},
        headers=PRECONDITION_HEADERS,
        response_headers=VERSION_HEADER,
    ),
    ("post", "/v1/retrieve"): Operation(
        {JSON: ref("RetrievedItems")},
        (400, 413, 422, 501, 503),
        body={JSON: ref("RetrieveRequest")},
        headers=PRECONDITION_HEADERS,
        response_headers=VERSION_HEADER,
    ),
    ("get", "/v1/versions"): Operation({JSON: ref("Versions")}, (410, 422, 503), headers=ETAGS, others=NOT_MODIFIED),
    ("get", "/v1/versions/latest"): Operation(
        {JSON: ref("Version")},
        (422, 503),
        headers=ETAGS,
        others=NOT_MODIFIED | {204: "No later version came in time."},
        response_headers=("ETag",),
    ),
    ("get", "/v1/versions/{v}"): Operation(
        {JSON: ref("Version")}, (410, 422, 503), headers=ETAGS, others=NOT_MODIFIED, response_headers=("ETag",)
    ),
    ("get", "/v1/log"): Operation({RAW: BINARY}, (409, 410, 422, 503)),
    ("get", "/v1/bases/latest"): Operation({JSON: ref("Base")}, (409, 503), headers=ETAGS, others=NOT_MODIFIED),
    ("get", "/v1/bases/{v}/files/{name}"): Operation(
        {RAW: BINARY, JSON: ref("Base")},
        (404, 410, 422, 503),
        headers=RANGES,
        others=FILE_STATUSES,
        response_headers=("ETag",),
    ),
    ("get", "/v1/snapshot"): Operation(
        {RAW: BINARY},
        (410, 422, 503, 507),
        headers=RANGES,
        others=FILE_STATUSES,
        response_headers=("ETag", "X-Springtide-Version"),
    ),
    ("get", "/v1/status"): Operation({JSON: ref("Status")}, (422,)),
    ("get", "/v1/events"): Operation({"text/event-stream": {"type": "string"}}, (503,)),
    ("get", "/healthz"): Operation({JSON: ref("Alive")}),
    ("get", "/readyz"): Operation({JSON: ref("Ready")}, (503,)),
    ("get", "/metrics"): Operation({"text/plain": {"type": "string"}}),
    ("post", "/v1/forget"): Operation({JSON: ref("Accepted")}, COMMAND_ERRORS, 202, body={JSON: ref("Forget")}),
    ("patch", "/v1/table"): Operation({JSON: ref("Accepted")}, COMMAND_ERRORS, 202, body={JSON: ref("Limits")}),
    ("post", "/v1/rollback"): Operation(
        {JSON: ref("Accepted")}, (*COMMAND_ERRORS, 410), 202, body={JSON: ref("Rollback")}
    ),
    ("get", "/v1/commands/{command_id}"): Operation({JSON: ref("CommandStatus")}, (404, 503)),
}
RANGED = tuple(key for key, operation in OPERATIONS.items() if operation.headers is RANGES)


# answered by lookup/handler.py before FastAPI sees the request
UNROUTED: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/v1/embeddings/{feature}"): {
        "tags": ["Embeddings"],
        "summary": "Many rows",
        "description": ABOUT_BATCH_LOOKUP,
        "operationId": "batch_lookup",
        "parameters": [{"name": "feature", "in": "path", "required": True, "schema": STRING}],
    }
}


def complete_document(document: dict[str, Any], *, open_scopes: Iterable[str], is_local: bool) -> dict[str, Any]:
    """Add to FastAPI's document what it cannot know; `is_local` if foreign Host headers are rejected."""
    for (method, path), entry in UNROUTED.items():
        document["paths"].setdefault(path, {})[method] = dict(entry)
    document["components"] = {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    for path, methods in document["paths"].items():
        for method, entry in methods.items():
            operation = OPERATIONS[method, path]
            _describe(entry, operation)
            scope = scope_of(path)
            if scope is not None and scope not in open_scopes:
                entry["security"] = [{"token": []}]
                entry["responses"] |= {"401": _error(401), "403": _error(403)}
            if path not in UNTHROTTLED_PATHS:
                entry["responses"]["429"] = _error(429)
            if operation.body is not None:
                entry["responses"]["408"] = _error(408)
            if is_local:
                entry["responses"]["421"] = _error(421)
            if (method, path) in RANGED:
                entry["responses"]["206"] = entry["responses"]["200"] | {"description": "The range."}
    return document


def _describe(entry: dict[str, Any], operation: Operation) -> None:
    success: dict[str, Any] = {
        "description": "Success." if operation.status == 200 else "Accepted.",
        "content": {name: {"schema": schema} for name, schema in operation.response.items()},
    }
    if operation.response_headers:
        success["headers"] = {
            name: {"required": True, "schema": {"type": "string"}} for name in operation.response_headers
        }
    entry["responses"] = {str(operation.status): success}
    entry["responses"] |= {str(code): {"description": text} for code, text in operation.others.items()}
    for code in operation.errors:
        entry["responses"][str(code)] = _error(code, operation.not_found if code == 404 else "Error")
    if operation.headers:
        entry["parameters"] = entry.get("parameters", []) + [
            {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
            for name, (schema, text) in operation.headers.items()
        ]
    if operation.body is not None:
        content = {name: {"schema": schema} for name, schema in operation.body.items()}
        entry["requestBody"] = {"required": True, "content": content}


def _error(code: int, schema: str = "Error") -> dict[str, Any]:
    return {"description": ERROR_DESCRIPTIONS[code], "content": {JSON: {"schema": ref(schema)}}}
