"""Wires one server process: routes, the handler of batch lookups, and the middleware around them."""

from functools import partial
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from springtide.app.serving import admin
from springtide.app.serving.feed import base_file_routes as base_files
from springtide.app.serving.feed import log_routes as log
from springtide.app.serving.feed import snapshot_routes as snapshots
from springtide.app.serving.feed import version_routes as versions
from springtide.app.serving.http.authorization import Authorizer
from springtide.app.serving.http.errors import CODES_BY_STATUS, ApiError, internal_error
from springtide.app.serving.http.middleware import AccessLog, HttpMiddleware
from springtide.app.serving.http.route import RouteTable
from springtide.app.serving.lookup import routes as lookup
from springtide.app.serving.lookup.fast_path import FastPath
from springtide.app.serving.lookup.handler import BatchLookupHandler
from springtide.app.serving.lookup.neighbors import rank_neighbors
from springtide.app.serving.openapi import complete_document
from springtide.app.serving.ops import routes as ops
from springtide.app.serving.pages import routes as pages
from springtide.app.serving.parts.handlers import DemandedViews, PartQuestion, PartQuestionHandler, PartRowsHandler
from springtide.app.serving.predict import routes as predict
from springtide.app.serving.retrieve import routes as retrieve
from springtide.app.serving.retrieve.ranking import rank_items
from springtide.app.serving.service import Service
from springtide_client.parts.rankings import (
    ITEMS_ROUTE,
    NEIGHBORS_ROUTE,
    ItemsRequest,
    NeighborsRequest,
    decode_ranking,
)

ROUTES = RouteTable(
    module.routes
    for module in (
        lookup,
        predict,
        retrieve,
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


class Application(NamedTuple):
    """The application as a connection needs it: the ASGI function, and the fast path beside it."""

    middleware: HttpMiddleware
    fast_path: FastPath


def build_application(service: Service) -> Application:
    """The whole application of one process."""
    config, metrics = service.config, service.metrics
    access_log = AccessLog(config.access_log_sample_rate)
    fast_path = FastPath(service.replica, metrics, access_log, max_ids=config.max_ids, batcher=service.lookup_batcher)
    handler = BatchLookupHandler(
        service.replica,
        metrics,
        service.pools.remote if service.part.is_router else service.pools.lookups,
        fast_path,
        max_body_bytes=config.max_body_bytes,
        max_ids=config.max_ids,
    )
    demanded = DemandedViews(service.replica, service.recent_views, service.part)
    part_rows = PartRowsHandler(
        demanded,
        service.pools.lookups,
        fast_path.remember_rows,
        max_body_bytes=config.max_body_bytes,
    )
    part_questions = PartQuestionHandler(
        demanded,
        {
            NEIGHBORS_ROUTE: PartQuestion(
                partial(decode_ranking, kind=NeighborsRequest),
                lambda view, request: rank_neighbors(view, request).encode(),
                service.pools.neighbors,
            ),
            ITEMS_ROUTE: PartQuestion(
                partial(decode_ranking, kind=ItemsRequest),
                lambda view, request: rank_items(service.retriever, view, request).encode(),
                service.pools.retrievals,
            ),
        },
        max_body_bytes=config.max_body_bytes,
    )
    authorizer = Authorizer(config, service.tokens, ROUTES.scope_of)
    middleware = HttpMiddleware(
        build_api(service, authorizer),
        direct=(handler, part_rows, part_questions),
        authorizer=authorizer,
        unthrottled=ROUTES.unthrottled,
        limits=service.limits,
        metrics=metrics,
        access_log=access_log,
        max_body_bytes=config.max_body_bytes,
    )
    return Application(middleware, fast_path)


def build_api(service: Service, authorizer: Authorizer) -> FastAPI:
    """The FastAPI part: every route but batch lookups. The docs page is our own: FastAPI's loads scripts from a CDN."""
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
    _set_parts(api, service)
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
    api.add_exception_handler(ApiError, _api_error)
    api.add_exception_handler(RequestValidationError, _validation_error)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(ClientDisconnect, _client_disconnected)
    api.add_exception_handler(Exception, _internal_error)
    return api


def _set_parts(api: FastAPI, service: Service) -> None:
    """Give the routes of each folder the parts they use, and no others."""
    config, replica, limits, pools = service.config, service.replica, service.limits, service.pools
    log_path = service.log.path
    api.state.lookup = lookup.LookupParts(replica, service.metrics, pools.neighbors, pools.remote, config.max_neighbors)
    api.state.predict = predict.PredictParts(
        replica, service.metrics, service.micro_batcher, pools.lookups, config.max_instances
    )
    api.state.retrieve = retrieve.RetrieveParts(
        replica,
        service.retriever,
        service.metrics,
        pools.retrievals,
        pools.remote,
        config.max_neighbors,
        config.max_ids,
    )
    api.state.versions = versions.VersionParts(log_path, replica, limits, pools.files)
    api.state.log = log.LogParts(log_path, replica, limits, service.record_cache, service.fixed_version)
    api.state.bases = base_files.BaseParts(log_path, replica, pools.files, service.fixed_version)
    api.state.snapshots = snapshots.SnapshotParts(log_path, replica, service.snapshots, pools.snapshots)
    api.state.admin = admin.AdminParts(service.log, replica, service.trainer, pools.commands, pools.audits)
    api.state.ops = ops.OpsParts(
        replica, service.trainer, service.status, service.history, service.scraper, limits, service.part
    )


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.scope["springtide.error_code"] = error.code
    return Response(error.body(), error.status, error.headers, "application/json")


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
    return await _api_error(request, ApiError(422, "invalid", "; ".join(faults), "see /docs"))


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # only counted: the client is gone


async def _internal_error(request: Request, error: Exception) -> Response:
    return await _api_error(request, internal_error())


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES_BY_STATUS.get(error.status_code, "error")
    detail = "there is no such route" if error.status_code == 404 and error.detail == "Not Found" else error.detail
    message = f"{request.method} {request.url.path}: {detail}"
    return await _api_error(request, ApiError(error.status_code, code, message, "see /docs", headers=error.headers))
