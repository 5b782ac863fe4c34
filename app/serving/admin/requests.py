"""The bodies of admin requests: checked here, and turned into the body of a command for the trainer."""

from typing import Any

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


def parse_forget(body: Any, features: tuple[str, ...]) -> dict[str, Any]:
    """The keys of {"feature", "id"}, {"feature", "ids"} or {"keys": [{"feature", "id"}, ...]}; ApiError 422."""
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object", 'for example {"feature": "user_id", "id": 123}')
    if "keys" in body:
        keys = body["keys"]
    elif "ids" in body:
        ids = body["ids"]
        keys = [{"feature": body.get("feature"), "id": value} for value in ids] if isinstance(ids, list) else None
    else:
        keys = [body]
    if not isinstance(keys, list) or not keys:
        raise invalid("there is nothing to forget", 'send {"feature": "user_id", "id": 123}')
    for key in keys:
        if not isinstance(key, dict) or set(key) != {"feature", "id"}:
            raise invalid("a key needs exactly feature and id", 'for example {"feature": "user_id", "id": 123}')
        if key["feature"] not in features:
            raise invalid(f"there is no feature {key['feature']!r}", f"the id features are {', '.join(features)}")
        if key["id"] is None:
            raise invalid("null is not a valid id", "an id is an integer or a string")
        try:
            encode_id(key["id"])
        except EncodeError as error:
            raise invalid(str(error), "an id is an integer or a string") from None
    return {"keys": keys}


def parse_rollback(body: Any) -> dict[str, Any]:
    """Check {"version": V} or {"version": V, "skip": true}; ApiError 422. `skip` skips the samples learned since V.

    V is a number, or another name of a version as a string.
    """
    version = body.get("version") if isinstance(body, dict) else None
    is_number = type(version) is int and 0 <= version <= INT64_MAX
    if not is_number and not (isinstance(version, str) and version):
        raise invalid("the body must name a version", 'for example {"version": 4294967300}')
    if unknown := set(body) - {"version", "skip"}:
        raise invalid(
            f"{sorted(unknown)[0]!r} is not a field of a rollback", 'for example {"version": 4294967300, "skip": true}'
        )
    if not isinstance(body.get("skip", False), bool):
        raise invalid("skip must be true or false", 'for example {"version": 4294967300, "skip": true}')
    return {"version": body["version"]} | ({"skip": True} if body.get("skip") else {})


def parse_table_limits(body: Any, schema: Schema) -> dict[str, Any]:
    """Check {"lr": ..., "features": {"item_id": {"ttl_seconds": ...}}}; ApiError 400. Sizes become bytes."""
    try:
        return {"limits": limits_document(parse_limits(body, schema))}
    except ValueError as error:
        raise bad_request(str(error), f"for example {EXAMPLE}") from None
