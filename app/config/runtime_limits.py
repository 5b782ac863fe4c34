"""Limits of a running table as people write them: `PATCH /v1/table`, and the order that it becomes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from springtide_client.schema import Schema

from app.config.binding import convert, format_toml_value, parse_size
from embeddings.config import TableLimits

TABLE_LIMITS: dict[str, Callable[[object], Any]] = {
    "device_bytes": parse_size,
    "disk_bytes": parse_size,
    "lr": lambda value: convert(float, value),
}
FEATURE_LIMITS: dict[str, Callable[[object], Any]] = {
    "ttl_seconds": lambda value: convert(float, value),
    "quota_bytes": parse_size,
    "min_count": lambda value: convert(int, value),
}
EXAMPLE = '{"lr": 0.02, "features": {"item_id": {"ttl_seconds": 86400}}}'

LimitName = tuple[str | None, str]  # a feature, None for the whole table; and the limit


def parse_limits(body: object, schema: Schema) -> dict[LimitName, Any]:
    """The limits that a body names, sizes in bytes; null lifts a feature's limit. ValueError says what is wrong."""
    if not isinstance(body, dict) or not body:
        raise ValueError("the body must be an object that names a limit")
    limits: dict[LimitName, Any] = {}
    for name, value in iterate_limits(body):
        feature, limit = name
        known = TABLE_LIMITS if feature is None else FEATURE_LIMITS
        where = limit if feature is None else f"features.{feature}.{limit}"
        if feature is not None:
            _check_feature(feature, schema)
        if limit not in known:
            raise ValueError(f"{where} cannot be changed while running: {', '.join(known)} can")
        try:
            limits[name] = None if value is None and feature is not None else known[limit](value)
            if isinstance(limits[name], int) and limits[name] >= 2**63:
                raise ValueError("is beyond 2**63")
            to_table_limits({name: limits[name]}, schema)
        except (ValueError, OverflowError) as error:
            text = str(error)
            raise ValueError(text if text.startswith(limit) else f"{where} {text}") from None
    return limits


def iterate_limits(document: Mapping[str, Any]) -> Iterator[tuple[LimitName, Any]]:
    """Every limit of a body by its name; ValueError where `features` is no table of tables."""
    for key, value in document.items():
        if key != "features":
            yield (None, key), value
            continue
        if not isinstance(value, dict) or not value:
            raise ValueError(f"features must be an object of features, not {format_toml_value(value)}")
        for feature, limits in value.items():
            if not isinstance(limits, dict) or not limits:
                raise ValueError(
                    f"features.{feature} must be an object that names a limit, not {format_toml_value(limits)}"
                )
            yield from (((feature, limit), of_feature) for limit, of_feature in limits.items())


def limits_document(limits: Mapping[LimitName, Any]) -> dict[str, Any]:
    """The body that says these limits."""
    body: dict[str, Any] = {}
    for (feature, limit), value in limits.items():
        home = body if feature is None else body.setdefault("features", {}).setdefault(feature, {})
        home[limit] = value
    return body


def to_table_limits(limits: Mapping[LimitName, Any], schema: Schema) -> TableLimits:
    """The limits as the table takes them; ValueError where a value is not possible."""
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
