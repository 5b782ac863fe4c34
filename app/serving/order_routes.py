"""Orders to the trainer; the guard has seen the admin token by then."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from app.serving.answers import JsonAnswer
from app.serving.orders import check_support, put_order, read_forget, read_rollback, read_table_limits
from app.serving.problems import bad_request
from app.serving.replica import wall_ms
from app.serving.service import Service

router = APIRouter(tags=["Orders (admin token)"])


@router.post("/v1/forget", status_code=202)
async def forget(request: Request) -> JsonAnswer:
    """Forget an id

    {"feature": "user_id", "id": 123}, {"feature": ..., "ids": [...]} or {"keys": [{"feature", "id"}, ...]}.
    """
    service: Service = request.app.state.service
    body = await _body(request)
    features = service.replica.take().schema.features
    return await _order(service, "forget", read_forget(body, features))


@router.patch("/v1/table", status_code=202)
async def limits(request: Request) -> JsonAnswer:
    """Change limits of the running table

    device_bytes, disk_bytes, lr; and in "features", by name, ttl_seconds, quota_bytes, min_count (null lifts one):
    {"lr": 0.02, "features": {"item_id": {"ttl_seconds": 86400}}}. They hold until the configuration says something new.
    """
    service: Service = request.app.state.service
    body = await _body(request)
    return await _order(service, "limits", read_table_limits(body, service.replica.take().schema))


@router.post("/v1/rollback", status_code=202)
async def rollback(request: Request) -> JsonAnswer:
    """Go back to a version: {"version": V}"""
    return await _order(request.app.state.service, "rollback", read_rollback(await _body(request)))


async def _body(request: Request) -> Any:
    try:
        return msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {error}", "send a JSON object") from None


async def _order(service: Service, kind: str, body: dict[str, Any]) -> JsonAnswer:
    def put() -> str:
        check_support(kind, service.trainer.read(now_ms=wall_ms()))
        return put_order(service.log_path, kind, body)

    order = await service.scans.run(put)
    return JsonAnswer({"order": order, "kind": kind, "state": "accepted"}, status_code=202)
