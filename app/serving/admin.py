"""Commands to the trainer over HTTP; the authorizer has checked the admin token before these routes run."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Request
from msgspec import Meta

from springtide.app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request, invalid
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import JSON, Routes
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide.app.serving.model.versions import resolve_version
from springtide.app.version_log.commands.limits import EXAMPLE, limits_document, parse_limits
from springtide.app.version_log.commands.queue import ErasedKey, command_status, erased_keys_report, submit_command
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.trainer_status import TrainerStatus
from springtide_client.errors import EncodeError
from springtide_client.keys import INT64_MAX, encode_id
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms


def check_supported(kind: str, status: TrainerStatus) -> None:
    """Raise ApiError 501 unless the trainer's status names the kind under `commands`."""
    if kind not in status.commands:
        raise ApiError(
            501,
            "not_supported_yet",
            f"the trainer of this log does not support {kind} commands; nothing was submitted",
            "a trainer that supports the kind names it in the `commands` list of /v1/status",
        )


class Key(msgspec.Struct, forbid_unknown_fields=True):
    """An id of a feature."""

    feature: str
    id: Annotated[Any, Meta(extra_json_schema={"type": ["integer", "string", "boolean", "number"]})]


class ForgetBody(msgspec.Struct, forbid_unknown_fields=True):
    """One id of a feature, several, or ids of several features."""

    feature: str = ""
    id: Any = msgspec.UNSET
    ids: list[Any] | None = None
    keys: list[Key] | None = None


FORGET_BODY = Annotated[
    ForgetBody,
    Meta(
        extra_json_schema={
            "anyOf": [{"required": ["feature", "id"]}, {"required": ["feature", "ids"]}, {"required": ["keys"]}]
        }
    ),
]


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The version to restore, by its number or another name; `skip` skips the samples learned since."""

    version: Annotated[int, Meta(ge=0, le=INT64_MAX)] | Annotated[str, Meta(min_length=1)]
    skip: bool = False


def parse_forget(body: Any, features: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys that a body names as ForgetBody says; ApiError 422."""
    example = 'for example {"feature": "user_id", "id": 123}'
    try:
        request = msgspec.convert(body, ForgetBody)
    except msgspec.ValidationError as error:
        raise invalid(f"the body does not name keys: {error}", example) from None
    ids = [request.id] if request.ids is None else request.ids
    keys = [Key(request.feature, value) for value in ids] if request.keys is None else request.keys
    if not keys or msgspec.UNSET in [key.id for key in keys]:
        raise invalid("there is nothing to forget", example)
    for key in keys:
        if key.feature not in features:
            raise invalid(f"there is no feature {key.feature!r}", f"the id features are {', '.join(features)}")
        if key.id is None:
            raise invalid("null is not a valid id", "an id is an integer or a string")
        try:
            encode_id(key.id)
        except EncodeError as error:
            raise invalid(str(error), "an id is an integer or a string") from None
    return {"keys": [msgspec.structs.asdict(key) for key in keys]}


def parse_rollback(body: Any) -> dict[str, Any]:
    """Return the fields of a RollbackBody, without those that are not set; ApiError 422."""
    try:
        found: dict[str, Any] = msgspec.to_builtins(msgspec.convert(body, RollbackBody))
    except msgspec.ValidationError as error:
        example = 'for example {"version": 4294967300, "skip": true}'
        raise invalid(f"the body does not name a version: {error}", example) from None
    return found


def parse_table_limits(body: Any, schema: Schema) -> dict[str, Any]:
    """Check {"lr": ..., "features": {"item_id": {"ttl_seconds": ...}}}; ApiError 400. Sizes become bytes."""
    try:
        return {"limits": limits_document(parse_limits(body, schema))}
    except ValueError as error:
        raise bad_request(str(error), f"for example {EXAMPLE}") from None


routes = Routes("Commands (admin token)")


class AcceptedResponse(msgspec.Struct, forbid_unknown_fields=True):
    """A command that was submitted to the trainer."""

    command: str
    kind: str
    note: str
    state: Literal["accepted"]


class CommandResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a command."""

    command: str
    state: Literal["waiting", "claimed", "published", "durable"]
    kind: str | None
    version: int | None
    name: str | None
    result: Any
    keys: list[ErasedKey]
    note: str


COMMAND_ERRORS = (400, 413, 422, 501, 503)
COMMAND: dict[str, Any] = {
    "scope": "admin",
    "response": AcceptedResponse,
    "status": 202,
}


@routes.add("POST", "/v1/forget", request=FORGET_BODY, errors=COMMAND_ERRORS, **COMMAND)
async def forget(request: Request) -> JsonResponse:
    """Forget an id

    {"feature": "user_id", "id": 123}, {"feature": ..., "ids": [...]} or {"keys": [{"feature", "id"}, ...]}.
    """
    body = await _json_body(request)
    features = request.app.state.replica.require_view().schema.features
    return await _submit(request, "forget", parse_forget(body, features))


@routes.add(
    "PATCH", "/v1/table", request={JSON: {"type": "object", "minProperties": 1}}, errors=COMMAND_ERRORS, **COMMAND
)
async def limits(request: Request) -> JsonResponse:
    """Change limits of the running table

    device_bytes, disk_bytes, lr; and in "features", by name, ttl_seconds, quota_bytes, min_count (null removes one):
    {"lr": 0.02, "features": {"item_id": {"ttl_seconds": 86400}}}. They stay in force until the configuration file sets
    a new value.
    """
    body = await _json_body(request)
    schema = request.app.state.replica.require_view().schema
    return await _submit(request, "limits", parse_table_limits(body, schema))


@routes.add("POST", "/v1/rollback", request=RollbackBody, errors=(*COMMAND_ERRORS, 410), **COMMAND)
async def rollback(request: Request) -> JsonResponse:
    """Roll back to a version

    {"version": V}: a new version restores V, a number or a string such as a pin or "@2026-11-21T10:00Z", except for ids
    forgotten since; the stream is read again from there. With "skip": true, the samples learned since V are sent to the
    dead-letter topic instead of being learned again.
    """
    state = request.app.state
    body = parse_rollback(await _json_body(request))
    if isinstance(name := body["version"], str):
        body["version"] = await state.pools.commands.run(lambda: resolve_version(state.log.path, name))
    return await _submit(request, "rollback", body)


@routes.add("GET", "/v1/commands/{command_id}", scope="admin", response=CommandResponse, errors=(404, 503))
async def command(request: Request, command_id: str) -> JsonResponse:
    """Status of a command

    `state` is waiting, claimed (by a trainer), published, or durable: the version that carries it survives a
    power loss. For a forget command, `keys` says for each of the first 16 keys in which version it was erased, which is
    the oldest file of the log that still contains it, and when that file will be removed.
    """
    state = request.app.state
    log: LogConfig = state.log
    trainer: TrainerStatusReader = state.trainer
    schema = state.replica.require_view().schema

    def find() -> CommandResponse:
        found = command_status(log.path, command_id)
        if found is None:
            hint = "use the `command` of a response to POST /v1/forget, PATCH /v1/table or POST /v1/rollback"
            raise ApiError(404, "no_such_command", f"there is no command {command_id} in the log", hint)
        return CommandResponse(
            **found.document(),
            keys=erased_keys_report(log, schema, found),
            note=_note(found.state, trainer.read(now_ms=wall_ms())),
        )

    # it may need every key of the log: submissions must not wait for that
    return JsonResponse(await state.pools.audits.run(find))


def _note(state: str, trainer: TrainerStatus) -> str:
    """Say why a command is not executed yet."""
    if state not in ("waiting", "claimed"):
        return ""
    if trainer.trainer in ("stopped", "failed"):
        return "no trainer is running: the command stays until the next trainer executes it"
    return f"the trainer is {trainer.trainer} and executes the command with its next version"


async def _json_body(request: Request) -> Any:
    try:
        return msgspec.json.decode(await request.body())
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be decoded: {error}", "send a JSON object") from None


async def _submit(request: Request, kind: str, body: dict[str, Any]) -> JsonResponse:
    state = request.app.state

    def submit() -> AcceptedResponse:
        trainer = state.trainer.read(now_ms=wall_ms())
        check_supported(kind, trainer)
        command = submit_command(state.log.path, kind, body)
        return AcceptedResponse(command, kind, _note("waiting", trainer), "accepted")

    accepted: AcceptedResponse = await state.pools.commands.run(submit)
    return JsonResponse(accepted, status_code=202, headers={"Location": f"/v1/commands/{accepted.command}"})
