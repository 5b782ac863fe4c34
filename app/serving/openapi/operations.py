"""What /openapi.json says of every route beyond its parameters: bodies, headers, answers, refusals, tokens.

FastAPI sees only part of it: bodies are read by the routes themselves, and the hot route is answered before FastAPI.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from app.serving.http.authorization import UNTHROTTLED_PATHS, scope_of
from app.serving.lookup.codecs import ARROW, JSON, MSGPACK, RAW
from app.serving.openapi.schemas import SCHEMAS, JsonSchema, ref

ERROR_DESCRIPTIONS = {
    400: "A header or the body says nothing this server understands.",
    401: "A token is needed, or the one sent is not known here.",
    403: "The token lacks the scope.",
    404: "There is no such thing; of a row, its status says why.",
    406: "No answer of that type is made.",
    408: "The request did not come whole in time.",
    410: "That version or file is no longer, or not yet, in the log.",
    413: "The body, or the number of ids or instances, is beyond the limit.",
    415: "The body is of a type that is not read here.",
    421: "A server without tokens answers to local names only.",
    422: "Understood, but not possible; `index` names the element that is at fault.",
    429: "More requests at once than the server takes on: Retry-After says when to ask again.",
    431: "The head of the request is beyond the limit.",
    500: "A defect of the server.",
    501: "The trainer of this log does not execute such orders.",
    503: "Not ready, too busy, or not as fresh as demanded: Retry-After says when to ask again.",
    507: "The snapshot is larger than the server may keep, or its disk is full.",
}
Headers = dict[str, tuple[JsonSchema, str]]
BINARY: JsonSchema = {"type": "string", "format": "binary"}
PRECONDITION_HEADERS: Headers = {
    "X-Springtide-Max-Staleness-Ms": ({"type": "number", "minimum": 0}, "Refuse with 503 what is older than this."),
    "X-Springtide-Min-Version": ({"type": "integer"}, "Refuse with 503 what is before this version."),
}
ETAGS: Headers = {"If-None-Match": ({"type": "string"}, "304 where this is the ETag.")}
RANGES: Headers = ETAGS | {
    "Range": ({"type": "string"}, "bytes=first-last; one range."),
    "If-Range": ({"type": "string"}, "The ETag that the range belongs to; the whole file where it is another."),
}


@dataclass(frozen=True)
class Operation:
    """A route's answers: media type -> shape of the good one, further statuses without a body, and refusals."""

    answer: dict[str, JsonSchema]
    refusals: tuple[int, ...] = ()
    status: int = 200
    others: dict[int, str] = field(default_factory=dict)
    body: dict[str, JsonSchema] | None = None
    headers: Headers = field(default_factory=dict)
    response_headers: tuple[str, ...] = ()  # headers of the good answer
    absent: str = "Error"  # the shape of 404


ABOUT_ROW = ("X-Springtide-Version",)
NOT_MODIFIED = {304: "It is still the one that If-None-Match names."}
NO_PART = NOT_MODIFIED | {416: "The range begins beyond the end; Content-Range tells where that is."}
FILE = Operation({RAW: BINARY}, (404, 410, 503), headers=RANGES, response_headers=("ETag",), others=NO_PART)
ROW = Operation(
    {JSON: ref("Row")},
    (400, 404, 422, 503),
    headers=PRECONDITION_HEADERS,
    response_headers=ABOUT_ROW,
    absent="AbsentRow",
)
ORDER_REFUSALS = (400, 413, 422, 501, 503)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/v1/embeddings/{feature}"): ROW,
    ("get", "/v1/embeddings/{feature}/{id}"): ROW,
    ("post", "/v1/embeddings/{feature}"): Operation(
        {JSON: ref("Rows"), MSGPACK: ref("PackedRows"), ARROW: BINARY, RAW: BINARY},
        (400, 404, 406, 413, 415, 422, 503),
        body={JSON: ref("Ids"), MSGPACK: ref("Ids"), ARROW: BINARY, RAW: BINARY},
        headers=PRECONDITION_HEADERS,
        response_headers=ABOUT_ROW,
    ),
    ("get", "/v1/embeddings/{feature}/{id}/neighbors"): Operation(
        {JSON: ref("Neighbors")},
        (400, 404, 422, 503),
        headers=PRECONDITION_HEADERS,
        response_headers=ABOUT_ROW,
        absent="AbsentRow",
    ),
    ("post", "/v1/predict"): Operation(
        {JSON: ref("Predictions")},
        (400, 413, 422, 503),
        body={JSON: ref("Question")},
        headers=PRECONDITION_HEADERS,
        response_headers=ABOUT_ROW,
    ),
    ("get", "/v1/versions"): Operation({JSON: ref("Versions")}, (422,), headers=ETAGS, others=NOT_MODIFIED),
    ("get", "/v1/versions/latest"): Operation(
        {JSON: ref("Version")},
        (422, 503),
        headers=ETAGS,
        others=NOT_MODIFIED | {204: "No later version came in time."},
        response_headers=("ETag",),
    ),
    ("get", "/v1/versions/{v}"): Operation(
        {JSON: ref("Version")}, (410, 422), headers=ETAGS, others=NOT_MODIFIED, response_headers=("ETag",)
    ),
    ("get", "/v1/log"): Operation({RAW: BINARY}, (410, 422, 503)),
    ("get", "/v1/bases/latest"): Operation({JSON: ref("Base")}, (503,), headers=ETAGS, others=NOT_MODIFIED),
    ("get", "/v1/bases/{v}/files/{name}"): Operation(
        {RAW: BINARY, JSON: ref("Base")},
        (404, 410, 422, 503),
        headers=RANGES,
        others=NO_PART,
        response_headers=("ETag",),
    ),
    ("get", "/v1/snapshot"): Operation(
        {RAW: BINARY},
        (410, 422, 503, 507),
        headers=RANGES,
        others=NO_PART,
        response_headers=("ETag", "X-Springtide-Version"),
    ),
    ("get", "/v1/status"): Operation({JSON: ref("Status")}, (422,)),
    ("get", "/v1/events"): Operation({"text/event-stream": {"type": "string"}}, (503,)),
    ("get", "/healthz"): Operation({JSON: ref("Alive")}),
    ("get", "/readyz"): Operation({JSON: ref("Ready")}, (503,)),
    ("get", "/metrics"): Operation({"text/plain": {"type": "string"}}),
    ("post", "/v1/forget"): Operation({JSON: ref("Accepted")}, ORDER_REFUSALS, 202, body={JSON: ref("Forget")}),
    ("patch", "/v1/table"): Operation({JSON: ref("Accepted")}, ORDER_REFUSALS, 202, body={JSON: ref("Limits")}),
    ("post", "/v1/rollback"): Operation({JSON: ref("Accepted")}, ORDER_REFUSALS, 202, body={JSON: ref("Rollback")}),
    ("get", "/v1/orders/{order_id}"): Operation({JSON: ref("Receipt")}, (404, 503)),
}
RANGED = tuple(key for key, operation in OPERATIONS.items() if operation.headers is RANGES)


def complete_document(document: dict[str, Any], *, open_scopes: Iterable[str], is_local: bool) -> dict[str, Any]:
    """FastAPI's page with what it cannot see; `is_local`: foreign Host names are refused."""
    document["components"] = {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    for path, methods in document["paths"].items():
        for method, entry in methods.items():
            operation = OPERATIONS[method, path]
            _describe(entry, operation)
            scope = scope_of(path)
            if scope is not None and scope not in open_scopes:
                entry["security"] = [{"token": []}]
                entry["responses"] |= {"401": _refusal(401), "403": _refusal(403)}
            if path not in UNTHROTTLED_PATHS:
                entry["responses"]["429"] = _refusal(429)
            if operation.body is not None:
                entry["responses"]["408"] = _refusal(408)
            if is_local:
                entry["responses"]["421"] = _refusal(421)
            if (method, path) in RANGED:
                entry["responses"]["206"] = entry["responses"]["200"] | {"description": "The range."}
    return document


def _describe(entry: dict[str, Any], operation: Operation) -> None:
    good: dict[str, Any] = {
        "description": "Done." if operation.status == 200 else "Accepted.",
        "content": {name: {"schema": shape} for name, shape in operation.answer.items()},
    }
    if operation.response_headers:
        good["headers"] = {
            name: {"required": True, "schema": {"type": "string"}} for name in operation.response_headers
        }
    entry["responses"] = {str(operation.status): good}
    entry["responses"] |= {str(code): {"description": text} for code, text in operation.others.items()}
    for code in operation.refusals:
        entry["responses"][str(code)] = _refusal(code, operation.absent if code == 404 else "Error")
    if operation.headers:
        entry["parameters"] = entry.get("parameters", []) + [
            {"name": name, "in": "header", "required": False, "schema": shape, "description": text}
            for name, (shape, text) in operation.headers.items()
        ]
    if operation.body is not None:
        content = {name: {"schema": shape} for name, shape in operation.body.items()}
        entry["requestBody"] = {"required": True, "content": content}


def _refusal(code: int, shape: str = "Error") -> dict[str, Any]:
    return {"description": ERROR_DESCRIPTIONS[code], "content": {JSON: {"schema": ref(shape)}}}
