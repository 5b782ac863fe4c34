"""`[table]`, and what `[features.*]` says of rows, as the table knows it: by feature number."""

from collections.abc import Mapping
from typing import Any

from springtide_client.schema import Schema

from app.config.binding import bind, format_toml_value, require_table
from app.config.features import FeatureConfig
from app.errors import UserError
from embeddings.config import Admission, FeaturePolicy, TableConfig
from embeddings.optimizer import RowOptimizer


def bind_table(
    section: Mapping[str, Any], schema: Schema, features: Mapping[str, FeatureConfig], *, disk_path: str
) -> tuple[TableConfig, str | None]:
    """The table's settings, and the dense field that holds a sample's custom score; UserError names the mistake."""
    policies = feature_policies(schema, features)
    settings = {key: value for key, value in section.items() if key != "score"}
    for key, settings_class in (("admission", Admission), ("optimizer", RowOptimizer)):
        # the tables inside, key by key: their own classes take what they are given
        bind(settings_class, f"[table] {key}", require_table(f"[table] {key}", settings.get(key, {})))
    config = bind(TableConfig, "[table]", settings, hidden={"features": policies}, disk_path=disk_path)
    return config, score_field(section.get("score"), config.eviction, schema)


def feature_policies(schema: Schema, features: Mapping[str, FeatureConfig]) -> dict[int, FeaturePolicy]:
    """The policies of features that have one."""
    policies = {}
    for name, feature in features.items():
        if not feature.row_keys:
            continue
        if name in schema.share:
            owner = schema.share[name]
            raise UserError(
                f"[features.{name}] {feature.row_keys[0]}: {name} shares the rows of {owner}, "
                f"so it goes into [features.{owner}]"
            )
        settings = {"ttl_seconds": feature.ttl_seconds, "quota_bytes": feature.quota_bytes}
        settings |= {"min_count": feature.min_count}
        given = {key: value for key, value in settings.items() if value is not None}
        policies[schema.number(name)] = bind(FeaturePolicy, f"[features.{name}]", given)
    return policies


def score_field(field: object, eviction: str, schema: Schema) -> str | None:
    """The field that scores keys where `eviction = "custom"`, and None elsewhere."""
    if eviction != "custom":
        if field is not None:
            raise UserError(
                f'[table] score goes with eviction = "custom", not with "{eviction}": leave one of them out'
            )
        return None
    choices = f"a field of [schema] dense ({', '.join(schema.dense) or 'which names none'})"
    if field is None:
        raise UserError(f'[table] eviction = "custom" needs score = "...", {choices}')
    if not isinstance(field, str) or field not in schema.dense:
        raise UserError(f"[table] score must be {choices}, not {format_toml_value(field)}")
    return field
