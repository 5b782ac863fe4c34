"""The HTML pages, each complete in one file: they need nothing from other servers."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

# the pages contain their style and script, and send requests to this server only
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}


@router.get("/")
def dashboard() -> Response:
    return _page("dashboard.html")


@router.get("/docs")
def docs() -> Response:
    return _page("docs.html")


@router.get("/favicon.ico")
def icon() -> Response:
    return Response(status_code=204)


def _page(name: str) -> Response:
    return Response(
        files("springtide.app.serving.pages").joinpath(name).read_bytes(), headers=HEADERS, media_type="text/html"
    )
