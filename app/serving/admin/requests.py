"""The bodies of admin requests: checked here, and turned into the body of a command for the trainer."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from springtide.app.serving.http.errors import ApiError, bad_request, invalid
from springtide.app.version_log.commands.limits import EXAMPLE, limits_document, parse_limits
from springtide.app.version_log.trainer_status import TrainerStatus
from springtide_client.errors import EncodeError
from springtide_client.keys import INT64_MAX, encode_id
from springtide_client.schema import Schema


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
