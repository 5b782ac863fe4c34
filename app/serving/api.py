"""The FastAPI application: every route but the hot one, and its own errors in our form."""

from inspect import cleandoc
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from app.serving.admin.routes import router as admin_router
from app.serving.feed.base_routes import router as base_router
from app.serving.feed.version_routes import router as version_router
from app.serving.http.errors import CODES_BY_STATUS, ApiError, internal_error
from app.serving.lookup.routes import router as lookup_router
from app.serving.openapi.operations import complete_document
from app.serving.ops.routes import router as operations_router
from app.serving.pages.routes import router as pages_router
from app.serving.predict.routes import router as predict_router
from app.serving.service import Service

ABOUT = "Embeddings, predictions and the model itself, moments after the click that changed them."


def build_api(service: Service) -> FastAPI:
    """The application; the docs page is our own, for FastAPI's loads its script from elsewhere."""
    # a path with one slash too many is no route: its redirect would be an address made of the asker's Host header
    api = FastAPI(
        title="Springtide", description=ABOUT, version="1", docs_url=None, redoc_url=None, redirect_slashes=False
    )
    api.state.service = service
    for router in (
        lookup_router,
        predict_router,
        version_router,
        base_router,
        operations_router,
        admin_router,
        pages_router,
    ):
        for route in router.routes:
            if isinstance(route, APIRoute):
                title_of(route)
        api.include_router(router)
    described = api.openapi

    def whole() -> dict[str, Any]:
        if api.openapi_schema is None:
            guard = service.authorizer
            complete_document(described(), open_scopes=guard.open_scopes, is_local=guard.checks_host)
        assert api.openapi_schema is not None
        return api.openapi_schema

    api.openapi = whole  # type: ignore[method-assign]
    api.add_exception_handler(ApiError, _refused)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(ClientDisconnect, _left)
    api.add_exception_handler(Exception, _failed)
    return api


def title_of(route: APIRoute) -> None:
    """A docstring's first line is the route's title in /docs, the rest its text."""
    if route.endpoint.__doc__:
        route.summary, _, route.description = cleandoc(route.endpoint.__doc__).partition("\n\n")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.scope["springtide.refusal"] = error.code
    return Response(error.body(), error.status, error.headers, "application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
    return await _refused(request, ApiError(422, "invalid", "; ".join(faults), "see /docs"))


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the counters: nobody reads it


async def _failed(request: Request, error: Exception) -> Response:
    return await _refused(request, internal_error())


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES_BY_STATUS.get(error.status_code, "error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return await _refused(request, ApiError(error.status_code, code, message, "see /docs", headers=error.headers))
