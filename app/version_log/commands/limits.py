"""Limits of the table that change while it runs: the body of `PATCH /v1/table`, and the command that it becomes."""

from collections.abc import Iterator, Mapping
from typing import Any

from springtide.embeddings.config import FeaturePolicy, TableConfig, TableLimits
from springtide.embeddings.optimizer import RowOptimizer
from springtide_client.schema import Schema
from springtide_client.system.settings import SettingsKey, format_value, keys

TABLE_LIMITS: dict[str, SettingsKey] = {
    "device_bytes": keys(TableConfig)["device_bytes"],
    "disk_bytes": keys(TableConfig)["disk_bytes"],
    "lr": keys(RowOptimizer)["lr"],
}
FEATURE_LIMITS: dict[str, SettingsKey] = keys(FeaturePolicy)
EXAMPLE = '{"lr": 0.02, "features": {"item_id": {"ttl_seconds": 86400}}}'

LimitName = tuple[str | None, str]  # a feature, None for the whole table; and the limit


def parse_limits(body: object, schema: Schema) -> dict[LimitName, Any]:
    """Return the limits in a body, sizes in bytes; null removes a feature's limit. ValueError names what is wrong."""
    if not isinstance(body, dict) or not body:
        raise ValueError("the body must be an object that names a limit")
    limits: dict[LimitName, Any] = {}
    for (feature, limit), value in iterate_limits(body):
        known = TABLE_LIMITS if feature is None else FEATURE_LIMITS
        prefix = "" if feature is None else f"features.{feature}."
        if feature is not None:
            _check_feature(feature, schema)
        if limit not in known:
            raise ValueError(f"{prefix}{limit} cannot be changed while running: {', '.join(known)} can")
        try:
            limits[feature, limit] = known[limit].convert(value)
        except ValueError as error:
            raise ValueError(f"{prefix}{error}") from None
    return limits


def iterate_limits(document: Mapping[str, Any]) -> Iterator[tuple[LimitName, Any]]:
    """Yield each limit of a body with its name; ValueError if `features` is not an object of objects."""
    for key, value in document.items():
        if key != "features":
            yield (None, key), value
            continue
        if not isinstance(value, dict) or not value:
            raise ValueError(f"features must be an object of features, not {format_value(value)}")
        for feature, limits in value.items():
            if not isinstance(limits, dict) or not limits:
                raise ValueError(f"features.{feature} must be an object that names a limit, not {format_value(limits)}")
            yield from (((feature, limit), of_feature) for limit, of_feature in limits.items())


def limits_document(limits: Mapping[LimitName, Any]) -> dict[str, Any]:
    """Return the body that names these limits: the inverse of `iterate_limits`."""
    body: dict[str, Any] = {}
    for (feature, limit), value in limits.items():
        home = body if feature is None else body.setdefault("features", {}).setdefault(feature, {})
        home[limit] = value
    return body


def to_table_limits(limits: Mapping[LimitName, Any], schema: Schema) -> TableLimits:
    """Return the limits by feature number, as the table takes them; ValueError if a value is not allowed."""
    values: dict[str, Any] = {limit: {} for limit in FEATURE_LIMITS}
    for (feature, limit), value in limits.items():
        if feature is None:
            values[limit] = value
        else:
            values[limit][schema.number(feature)] = value
    return TableLimits(**values)


def _check_feature(feature: str, schema: Schema) -> None:
    if feature not in schema.features:
        raise ValueError(f"there is no feature {feature!r}: the id features are {', '.join(schema.features)}")
    if feature in schema.share:
        raise ValueError(f"{feature} shares the rows of {schema.share[feature]}: name that one")
