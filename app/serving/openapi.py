"""The OpenAPI document: FastAPI knows the parameters, the declarations of the routes know everything else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from springtide.app.serving.http.errors import ERROR_DESCRIPTIONS, ErrorResponse
from springtide.app.serving.http.route import JSON, RANGES, TEXT, JsonSchema, Route


def complete_document(
    document: dict[str, Any], routes: Sequence[Route], *, open_scopes: Iterable[str], is_local: bool
) -> dict[str, Any]:
    """Add to FastAPI's document what it cannot know; `is_local` if foreign Host headers are rejected."""
    described = [route for route in routes if route.response is not None]
    schemas = Schemas(described)
    document["components"] = {
        "schemas": schemas.components,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    for route in described:
        entry = document["paths"][route.documented_path][route.method.lower()]
        errors = list(route.errors)
        if route.scope != "public" and route.scope not in open_scopes:
            entry["security"] = [{"token": []}]
            errors += [401, 403]
        errors += [429] * route.is_throttled + [408] * (route.request is not None) + [421] * is_local
        _describe(entry, route, schemas, errors)
    return document


class Schemas:
    """The JSON schemas of all bodies: structs are components of the document."""

    def __init__(self, routes: Sequence[Route]) -> None:
        bodies = [body for route in routes for body in (route.request, route.response, route.not_found)]
        shapes = [shape for body in bodies for shape in _by_media_type(body).values()]
        types = list(dict.fromkeys([ErrorResponse, *(shape for shape in shapes if not isinstance(shape, dict))]))
        schemas, self.components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        self._schemas = dict(zip(types, schemas, strict=True))

    def content(self, body: Any) -> dict[str, Any]:
        """Return the `content` of a body."""
        return {media_type: {"schema": self._schema(shape)} for media_type, shape in _by_media_type(body).items()}

    def _schema(self, shape: Any) -> JsonSchema:
        return shape if isinstance(shape, dict) else self._schemas[shape]


def _by_media_type(body: Any) -> Mapping[str, Any]:
    if isinstance(body, Mapping):
        return body
    return {} if body is None else {JSON: body}


def _describe(entry: dict[str, Any], route: Route, schemas: Schemas, errors: Iterable[int]) -> None:
    description = "Success." if route.status == 200 else "Accepted."
    success: dict[str, Any] = {"description": description, "content": schemas.content(route.response)}
    if route.response_headers:
        success["headers"] = {name: {"required": True, "schema": TEXT} for name in route.response_headers}
    responses = {str(route.status): success}
    if route.headers is RANGES:
        responses["206"] = success | {"description": "The range."}
    responses |= {str(code): {"description": text} for code, text in route.other_statuses.items()}
    for code in errors:
        content = schemas.content(route.not_found if code == 404 else ErrorResponse)
        responses[str(code)] = {"description": ERROR_DESCRIPTIONS[code], "content": content}
    entry["responses"] = responses
    if route.headers:
        entry["parameters"] = entry.get("parameters", []) + [
            {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
            for name, (schema, text) in route.headers.items()
        ]
    if route.request is not None:
        entry["requestBody"] = {"required": True, "content": schemas.content(route.request)}
