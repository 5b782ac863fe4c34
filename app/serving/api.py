"""Wires one server process: its routes, and the middleware around them."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from springtide.app.serving import admin
from springtide.app.serving.feed import base_file_routes as base_files
from springtide.app.serving.feed import log_routes as log
from springtide.app.serving.feed import snapshot_routes as snapshots
from springtide.app.serving.feed import version_routes as versions
from springtide.app.serving.http.authorization import Authorizer
from springtide.app.serving.http.errors import ApiError, api_error
from springtide.app.serving.http.middleware import HttpMiddleware
from springtide.app.serving.http.route import RouteTable
from springtide.app.serving.lookup import routes as lookup
from springtide.app.serving.openapi import complete_document
from springtide.app.serving.ops import routes as ops
from springtide.app.serving.pages import routes as pages
from springtide.app.serving.parts import routes as parts
from springtide.app.serving.predict import routes as predict
from springtide.app.serving.retrieve import routes as retrieve
from springtide.app.serving.service import Service
from springtide_client.errors import PartError

ROUTES = RouteTable(
    module.routes
    for module in (
        lookup,
        predict,
        retrieve,
        parts,
        versions,
        log,
        base_files,
        snapshots,
        ops,
        admin,
        pages,
    )
)
ABOUT = "Embeddings, predictions and the model itself, moments after the click that changed them."


def build_application(service: Service) -> HttpMiddleware:
    """The whole application of one process, an ASGI function."""
    authorizer = Authorizer(service.config, service.tokens, ROUTES.scope_of)
    return HttpMiddleware(
        build_api(service, authorizer),
        ROUTES,
        authorizer=authorizer,
        limits=service.limits,
        metrics=service.metrics,
        access_log=service.access_log,
        max_body_bytes=service.config.max_body_bytes,
    )


def build_api(service: Service, authorizer: Authorizer) -> FastAPI:
    """The FastAPI part. The docs page is our own: FastAPI's loads scripts from a CDN."""
    # a path with a superfluous slash is an error: a redirect would contain the client's own Host header
    api = FastAPI(
        title="Springtide",
        description=ABOUT,
        version="1",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state = State(vars(service))  # each route takes of it what it uses
    for router in ROUTES.routers:
        api.include_router(router)
    fastapi_document = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            complete_document(
                fastapi_document(),
                ROUTES.routes,
                open_scopes=authorizer.open_scopes,
                is_local=authorizer.checks_host,
            )
        assert api.openapi_schema is not None
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]
    for kind in (ApiError, PartError, RequestValidationError, HTTPException, Exception):
        api.add_exception_handler(kind, _respond_to_error)
    api.add_exception_handler(ClientDisconnect, _client_disconnected)
    return api


async def _respond_to_error(request: Request, error: Exception) -> Response:
    return api_error(error, request.scope).response()


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # only counted: the client is gone
