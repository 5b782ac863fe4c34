"""Orders to the trainer; the guard has seen the admin token by then."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from springtide_client.system.clock import wall_ms

from app.serving.admin.requests import check_supported, parse_forget, parse_rollback, parse_table_limits
from app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request
from app.serving.http.responses import JsonResponse
from app.serving.service import Service
from app.version_log.commands.queue import submit_command
from app.version_log.commands.status import command_status, erased_keys_report

router = APIRouter(tags=["Orders (admin token)"])


@router.post("/v1/forget", status_code=202)
async def forget(request: Request) -> JsonResponse:
    """Forget an id

    {"feature": "user_id", "id": 123}, {"feature": ..., "ids": [...]} or {"keys": [{"feature", "id"}, ...]}.
    """
    service: Service = request.app.state.service
    body = await _body(request)
    features = service.replica.require_view().schema.features
    return await _order(service, "forget", parse_forget(body, features))


@router.patch("/v1/table", status_code=202)
async def limits(request: Request) -> JsonResponse:
    """Change limits of the running table

    device_bytes, disk_bytes, lr; and in "features", by name, ttl_seconds, quota_bytes, min_count (null lifts one):
    {"lr": 0.02, "features": {"item_id": {"ttl_seconds": 86400}}}. They hold until the configuration says something new.
    """
    service: Service = request.app.state.service
    body = await _body(request)
    return await _order(service, "limits", parse_table_limits(body, service.replica.require_view().schema))


@router.post("/v1/rollback", status_code=202)
async def rollback(request: Request) -> JsonResponse:
    """Go back to a version

    {"version": V}: a new version restores that one, but for what was forgotten since; the stream is read again from
    there. With "skip": true what was learned since goes to the dead letters instead.
    """
    return await _order(request.app.state.service, "rollback", parse_rollback(await _body(request)))


@router.get("/v1/orders/{order_id}")
async def order_receipt(request: Request, order_id: str) -> JsonResponse:
    """What became of an order

    `state` is waiting (nobody has taken it), taken, published, or durable: the version that carries it outlives a power
    loss. Of a forgetting, `keys` tells since which version each of the first 16 is gone, and the oldest file of the log
    that still holds it, with what must happen before that is unlinked.
    """
    service: Service = request.app.state.service
    schema = service.replica.require_view().schema

    def find() -> dict[str, Any]:
        receipt = command_status(service.log_path, order_id)
        if receipt is None:
            raise ApiError(404, "no_such_order", f"nothing is known of an order {order_id}", "ids are in the answers")
        return receipt.document() | {
            "keys": erased_keys_report(service.log, schema, receipt),
            "note": _note(receipt.state, service.trainer.read(now_ms=wall_ms())),
        }

    return JsonResponse(await service.scans.run(find))


def _note(state: str, trainer: Mapping[str, Any]) -> str:
    """What an order that is not executed waits for."""
    if state not in ("waiting", "taken"):
        return ""
    condition = trainer.get("trainer")
    if condition in ("stopped", "failed"):
        return "no trainer runs: the order stays, and the next one executes it"
    return f"the trainer is {condition} and executes it with its next version"


async def _body(request: Request) -> Any:
    try:
        return msgspec.json.decode(await request.body())
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be read: {error}", "send a JSON object") from None


async def _order(service: Service, kind: str, body: dict[str, Any]) -> JsonResponse:
    def put() -> dict[str, Any]:
        trainer = service.trainer.read(now_ms=wall_ms())
        check_supported(kind, trainer)
        order = submit_command(service.log_path, kind, body)
        return {"order": order, "kind": kind, "state": "accepted", "note": _note("waiting", trainer)}

    accepted = await service.scans.run(put)
    return JsonResponse(accepted, status_code=202, headers={"Location": f"/v1/orders/{accepted['order']}"})
