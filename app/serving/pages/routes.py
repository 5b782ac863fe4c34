"""The HTML pages, each complete in one file: they need nothing from other servers."""

from importlib.resources import files
from typing import Any

from fastapi import Request
from starlette.responses import Response

from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import Routes

routes = Routes("Pages")
PAGE: dict[str, Any] = {"scope": "public", "response": None, "head": True}  # not in the document

# the pages contain their style and script, and send requests to this server only
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}


@routes.add("GET", "/", **PAGE)
def dashboard() -> Response:
    return _page("dashboard.html")


@routes.add("GET", "/docs", **PAGE)
def docs() -> Response:
    return _page("docs.html")


@routes.add("GET", "/openapi.json", **PAGE)
def document(request: Request) -> Response:
    return JsonResponse(request.app.openapi())


@routes.add("GET", "/favicon.ico", **PAGE)
def icon() -> Response:
    return Response(status_code=204)


def _page(name: str) -> Response:
    return Response(
        files("springtide.app.serving.pages").joinpath(name).read_bytes(), headers=HEADERS, media_type="text/html"
    )
