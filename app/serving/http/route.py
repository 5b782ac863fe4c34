"""Routes, each declared once: method and path, who may call it, its bodies and headers, its errors, what it does.

The authorizer reads the scope in the declaration, FastAPI dispatches by it, and /openapi.json describes it. An
incomplete one raises ValueError when its module is imported. A direct route is answered before FastAPI sees the
request, which costs more than to score an instance or to look up a thousand rows.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, get_args

from fastapi import APIRouter
from msgspec import Meta

from springtide.app.serving.http.errors import ERROR_DESCRIPTIONS, ErrorResponse
from springtide.app.serving.http.preconditions import MAX_STALENESS, MIN_VERSION

JSON = "application/json"
MSGPACK = "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"
RAW = "application/octet-stream"

JsonSchema = dict[str, Any]
Scope = Literal["public", "read", "predict", "admin"]  # public: pages and probes show no data of the model
Headers = Mapping[str, tuple[JsonSchema, str]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

# a record may also have booleans and null as ids
RequestId = Annotated[Any, Meta(extra_json_schema={"type": ["integer", "string", "boolean", "null"]})]
BINARY: JsonSchema = {"type": "string", "format": "binary"}
TEXT: JsonSchema = {"type": "string"}
PRECONDITIONS: Headers = {
    MAX_STALENESS.title(): ({"type": "number", "minimum": 0}, "Respond with 503 if the served version is staler."),
    MIN_VERSION.title(): ({"type": "integer"}, "Respond with 503 if the served version is older."),
}
ETAGS: Headers = {"If-None-Match": (TEXT, "Respond with 304 if this is the ETag.")}
RANGES: Headers = {
    **ETAGS,
    "Range": (TEXT, "bytes=first-last; one range."),
    "If-Range": (TEXT, "The ETag that the range belongs to; if it has changed, the whole file is sent."),
}
NOT_MODIFIED = {304: "Not modified: If-None-Match names the present one."}
FILE_STATUSES = {**NOT_MODIFIED, 416: "The range begins beyond the end, which is in Content-Range."}
VERSION_HEADER = ("X-Springtide-Version",)
PARAMETER = re.compile(r"{(\w+)(:path)?}")


@dataclass(frozen=True, kw_only=True)
class Route:
    """The declaration of one method of a path.

    Bodies are a type that msgspec describes, or by media type such a type or a JSON schema. A route without `response`
    is not part of the document.
    """

    method: Literal["GET", "POST", "PATCH"]
    path: str
    endpoint: Callable[..., Any]
    tag: str
    summary: str
    description: str
    scope: Scope
    response: Any
    errors: tuple[int, ...] = ()
    request: Any = None
    status: int = 200
    other_statuses: Mapping[int, str] = field(default_factory=dict)
    headers: Headers = field(default_factory=dict)  # that the request may have
    response_headers: tuple[str, ...] = ()  # that a successful response has
    not_found: Any = ErrorResponse  # the body of a 404
    head: bool = False  # HEAD too, for monitoring tools and people
    direct: bool = False  # the endpoint takes the request, and the parameter that the path may end with
    throttled: bool = True  # counted as in flight; streams have a limit of their own, probes are needed under load

    def __post_init__(self) -> None:
        where = f"{self.method} {self.path}"
        if not self.path.startswith("/"):
            raise ValueError(f"{where}: a path begins with a slash")
        if self.scope not in get_args(Scope):
            raise ValueError(f"{where}: there is no scope {self.scope!r}, only {', '.join(get_args(Scope))}")
        if missing := set(self.parameters) - inspect.signature(self.endpoint).parameters.keys():
            raise ValueError(f"{where}: {self.endpoint.__name__} does not take {', '.join(sorted(missing))}")
        if self.response is None:
            return
        if not self.summary:
            raise ValueError(f"{where}: say what it does in the docstring")
        if unknown := set(self.errors) - ERROR_DESCRIPTIONS.keys():
            raise ValueError(f"{where}: ERROR_DESCRIPTIONS lacks {', '.join(map(str, sorted(unknown)))}")
        if (self.request is None) != (self.method == "GET"):
            raise ValueError(f"{where}: POST and PATCH have a request body, GET has none")

    @property
    def is_throttled(self) -> bool:
        """True if its requests are counted as in flight."""
        return self.throttled and self.scope != "public"

    @property
    def place(self) -> str:
        """The path up to its first parameter."""
        return self.path.partition("{")[0]

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return [name for name, _ in PARAMETER.findall(self.path)]

    @property
    def documented_path(self) -> str:
        """The path as OpenAPI writes it."""
        return PARAMETER.sub(r"{\1}", self.path)


class Routes:
    """The routes of one module."""

    def __init__(self, tag: str) -> None:
        self.router = APIRouter()
        self.declared: list[Route] = []
        self._tag = tag

    def add(
        self, method: Literal["GET", "POST", "PATCH"], path: str, *, scope: Scope, response: Any, **more: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare the decorated function; its docstring's first line is the title, the rest the description."""

        def declare(endpoint: Endpoint) -> Endpoint:
            summary, _, description = (inspect.getdoc(endpoint) or "").partition("\n\n")
            route = Route(
                method=method,
                path=path,
                endpoint=endpoint,
                tag=self._tag,
                summary=summary,
                description=description,
                scope=scope,
                response=response,
                **more,
            )
            self.declared.append(route)
            self.router.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=route.status,
                tags=[route.tag],
                summary=summary,
                description=description,
                operation_id=endpoint.__name__,
                include_in_schema=response is not None,
            )
            if route.head:
                self.router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
            return endpoint

        return declare


class RouteTable:
    """The routes of the server, and what is known of a request by its path alone."""

    def __init__(self, modules: Iterable[Routes]) -> None:
        modules = list(modules)
        self.routers = [module.router for module in modules]
        self.routes: Sequence[Route] = [route for module in modules for route in module.declared]
        scopes: dict[str, Scope] = {}
        for route in self.routes:
            if scopes.setdefault(route.place, route.scope) != route.scope:
                raise ValueError(f"{route.path}: another route of this place has the scope {scopes[route.place]!r}")
        names = Counter(route.endpoint.__name__ for route in self.routes)
        if same := [name for name, number in names.items() if number > 1]:
            raise ValueError(f"an operation is named for its function: there are several {', '.join(same)}")
        self._scopes = scopes
        self._prefixes = sorted((route.place for route in self.routes if route.parameters), key=len)
        self._direct = [route for route in self.routes if route.direct]
        self.unthrottled = frozenset(route.path for route in self.routes if not route.is_throttled)

    def scope_of(self, path: str) -> Scope:
        """Return the scope that a path needs; `read` if there is no such path."""
        found = self._scopes.get(path) or self._scopes.get(path.rstrip("/"))
        if found is None:
            prefix = next((prefix for prefix in reversed(self._prefixes) if path.startswith(prefix)), "")
            found = self._scopes.get(prefix, "read")
        return found

    def find_direct(self, method: str, path: str) -> tuple[Route, Sequence[str]] | None:
        """Return the direct route of a request, and the arguments in its path."""
        for route in self._direct:
            if method == route.method and path.startswith(route.place):
                rest = path[len(route.place) :]
                if bool(route.parameters) or not rest:
                    return route, [rest] if route.parameters else []
        return None
