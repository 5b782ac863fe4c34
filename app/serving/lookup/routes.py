"""One row, by GET, and its neighbors. (Many rows, by POST, are answered by the front.)"""

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from springtide_client.keys import INT64_MAX, INT64_MIN, is_canonical_decimal

from app.serving.http.errors import ApiError, invalid, no_such_feature
from app.serving.http.preconditions import parse_preconditions
from app.serving.http.responses import JsonResponse
from app.serving.lookup.codecs import STATUS_NAMES, parse_ids
from app.serving.lookup.neighbors import SIMILARITIES, find_neighbors
from app.serving.model.view import ModelView
from app.serving.service import Service

router = APIRouter(tags=["Embeddings"])

HINTS = {"not_admitted": "it shares a row of its feature until it was seen as often as the feature's min_count asks"}

ABOUT_POST = """Many rows at once: {"ids": [...], "max_staleness_ms": 500}

By Content-Type and Accept: application/json, application/msgpack (vectors: one bin of N x dim float32),
application/vnd.apache.arrow.stream (column id in; id, status, vector out) or application/octet-stream
(little-endian int64 in; N x dim float32, or ;dtype=float16, then N status bytes out: 0 known, 1 unknown,
2 not_admitted, 3 forgotten; integer ids only).
"""


@router.get("/v1/embeddings/{feature}")
async def row_by_query(request: Request, feature: str, id: Annotated[str, Query()]) -> JsonResponse:
    """One row, for ids with slashes"""
    return _row(request, feature, id)


@router.post("/v1/embeddings/{feature}", description=ABOUT_POST, summary="Many rows")
async def rows(feature: str) -> JsonResponse:
    # the front answers this route before FastAPI sees it; it stands here for the documentation
    raise AssertionError(f"the front let {feature} through")


@router.get("/v1/embeddings/{feature}/{id:path}/neighbors")
async def neighbors(
    request: Request,
    feature: str,
    id: str,
    k: Annotated[int, Query(ge=1)] = 10,
    metric: Annotated[str, Query()] = "cosine",
) -> JsonResponse:
    """Nearest rows of the same feature

    metric: cosine, dot or euclidean. Exact: every row of the feature is compared.
    """
    service: Service = request.app.state.service
    if metric not in SIMILARITIES:
        raise invalid(f"there is no metric {metric!r}", f"the metrics are {', '.join(SIMILARITIES)}")
    if k > service.config.max_neighbors:
        raise invalid(f"k is beyond {service.config.max_neighbors}", "ask for fewer")
    view = service.replica.view_satisfying(parse_preconditions(request.headers))
    headers = service.replica.version_headers(view)
    number = _number(view, feature)
    row_id, sent = read_id(id)
    found = await service.scans.run(lambda: find_neighbors(view, number, row_id, k=k, metric=metric))
    _, status_1 = view.lookup(number, np.array([row_id], dtype=np.int64))
    service.count_rows(status_1)
    if found is None:
        raise _absent(view, feature, sent, STATUS_NAMES[status_1[0]], headers)
    document = {"feature": feature, "id": sent, "version": view.version, "metric": metric, "neighbors": found}
    return JsonResponse(document, headers=headers)


@router.get("/v1/embeddings/{feature}/{id:path}")
async def row(request: Request, feature: str, id: str) -> JsonResponse:
    """One row"""
    return _row(request, feature, id)


def read_id(text: str) -> tuple[int, int | str]:
    """The id of a text in a URL, and the form it is shown in: a decimal integer is a number."""
    row_id = int(parse_ids([text])[0])
    is_number = len(text) <= 20 and is_canonical_decimal(text) and INT64_MIN <= int(text) <= INT64_MAX
    return row_id, int(text) if is_number else text


def _row(request: Request, feature: str, text: str) -> JsonResponse:
    service: Service = request.app.state.service
    view = service.replica.view_satisfying(parse_preconditions(request.headers))
    headers = service.replica.version_headers(view)
    number = _number(view, feature)
    row_id, sent = read_id(text)
    rows_1D, status_1 = view.lookup(number, np.array([row_id], dtype=np.int64))
    service.count_rows(status_1)
    if status_1[0] != 0:
        raise _absent(view, feature, sent, STATUS_NAMES[status_1[0]], headers)
    count, last_seen_ms = view.row_info(number, row_id)
    document = {
        "feature": feature,
        "id": sent,
        "status": "known",
        "vector": rows_1D[0].tolist(),
        "count": count,
        "last_seen_ms": last_seen_ms,
        "version": view.version,
    }
    return JsonResponse(document, headers=headers)


def _number(view: ModelView, feature: str) -> int:
    try:
        number: int = view.schema.number(feature)
    except KeyError:
        raise no_such_feature(feature, view.schema.features) from None
    return number


def _absent(view: ModelView, feature: str, sent: int | str, status: str, headers: dict[str, str]) -> ApiError:
    return ApiError(
        404,
        status,
        f"{feature} {sent} has no row: {status}",
        HINTS.get(status, "a row is created when the id is first learned from"),
        headers=headers,
        beside={"feature": feature, "id": sent, "status": status, "version": view.version},
    )
