"""Composes every part's settings from one TOML file; the only reader of it. Knows the sections, not their meaning."""

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from springtide_client.schema import Schema

from app.config.binding import bind, format_toml_value, require_table, unknown_key
from app.config.features import FeatureConfig
from app.errors import UserError
from app.serving.config import ServeConfig
from app.version_log.config import SMALLEST_BYTES, LogConfig
from stream.config import SourceConfig

if TYPE_CHECKING:
    from app.models.registry import ModelConfig
    from app.training.config import TrainConfig
    from app.training.health.gate import GateConfig
    from embeddings.config import TableConfig

DEFAULT_PATH = Path("springtide.toml")
SECTIONS = ("source", "schema", "features", "table", "model", "train", "gate", "log", "serve")
SCHEMA_KEYS = ("label", "labels", "timestamp", "weight", "categorical", "multi_value", "sequence", "dense", "share")


@dataclass(frozen=True, kw_only=True)
class LightConfig:
    """What a command needs to find the stream, the log and the server; reading it imports no torch."""

    name: str
    path: Path
    source: SourceConfig
    schema: Schema
    features: dict[str, FeatureConfig] = field(default_factory=dict)
    log: LogConfig
    serve: ServeConfig


@dataclass(frozen=True, kw_only=True)
class Config(LightConfig):
    """All settings."""

    table: "TableConfig"
    score_field: str | None = None  # the dense field with a sample's score, where eviction = "custom"
    model: "ModelConfig"
    train: "TrainConfig"
    gate: "GateConfig"


def load_config(path: Path | str | None = None) -> Config:
    """Every section, checked; UserError names the file's mistake and the mend."""
    from springtide_client.system.sizes import parse_size

    from app.config.table import bind_table
    from app.models.registry import ModelConfig
    from app.training.config import TrainConfig
    from app.training.health.gate import GateConfig

    path = Path(path or DEFAULT_PATH)
    document = read_document(path)
    outline = light_config_of(document, path)
    spill = str(Path("var") / outline.name / "spill")
    table, score_field = bind_table(section_of(document, "table"), outline.schema, outline.features, disk_path=spill)
    # [table] disk_bytes is for spill and log; the spill keeps at least half of it
    share = max(parse_size(table.disk_bytes) // 2, SMALLEST_BYTES)
    outline = replace(outline, log=replace(outline.log, log_bytes=min(outline.log.log_bytes, share)))
    return Config(
        **vars(outline),
        table=table,
        score_field=score_field,
        model=bind(ModelConfig, "[model]", section_of(document, "model")),
        train=bind(TrainConfig, "[train]", section_of(document, "train")),
        gate=bind(GateConfig, "[gate]", section_of(document, "gate")),
    )


def load_light_config(path: Path | str | None = None) -> LightConfig:
    """The sections that need no torch; the others' names are checked, not their values."""
    path = Path(path or DEFAULT_PATH)
    return light_config_of(read_document(path), path)


def read_document(path: Path) -> dict[str, Any]:
    """The file as TOML has it, its sections known."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no {path}: write one (deploy/examples has some) or name one with --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is no TOML: {error}") from None
    for key in document:
        if key not in SECTIONS and key != "name":
            raise unknown_key(str(path), key, ["name", *SECTIONS])
    return document


def light_config_of(document: dict[str, Any], path: Path) -> LightConfig:
    """The light sections of a document."""
    name = document.get("name")
    if name is None:
        raise UserError(f'{path} needs name = "...", above its first section')
    if not isinstance(name, str) or not name or name.startswith(".") or "/" in name:
        raise UserError(
            f'name must be a text that can name a folder, such as "movielens", not {format_toml_value(name)}'
        )
    features = bind_features(section_of(document, "features"))
    log = bind(LogConfig, "[log]", section_of(document, "log"), path=Path("var") / name / "log")
    source = {"topic": "clicks"} | section_of(document, "source")
    return LightConfig(
        name=name,
        path=path,
        source=bind(SourceConfig, "[source]", source, hidden={"log_path": log.path}),
        schema=bind_schema(section_of(document, "schema"), features),
        features=features,
        log=log,
        serve=bind(ServeConfig, "[serve]", section_of(document, "serve")),
    )


def section_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A section's table; empty where the file has none."""
    return require_table(f"[{name}]", document.get(name, {}))


def bind_features(table: dict[str, Any]) -> dict[str, FeatureConfig]:
    """[features.*]."""
    return {
        name: bind(FeatureConfig, f"[features.{name}]", require_table(f"[features.{name}]", settings))
        for name, settings in table.items()
    }


def bind_schema(table: dict[str, Any], features: dict[str, FeatureConfig]) -> Schema:
    """[schema], with `label` or `labels`, and the lists' lengths and pooling from [features.*]."""
    for key in table:
        if key not in SCHEMA_KEYS:
            raise unknown_key("[schema]", key, SCHEMA_KEYS)
    values = dict(table)
    if "label" in values and "labels" in values:
        raise UserError("[schema] has both label and labels: keep one")
    if "label" in values:
        if not isinstance(values["label"], str):
            raise UserError(
                f"[schema] label must be a field's name in quotes, not {format_toml_value(values['label'])}"
            )
        values["labels"] = [values.pop("label")]
    if not values.get("labels"):
        raise UserError('[schema] needs label = "..." (or labels = [...])')
    lengths = {name: feature.max_length for name, feature in features.items() if feature.max_length is not None}
    schema = bind(Schema, "[schema]", values, hidden={"max_length": {}, "pooling": {}})
    for name in features:
        if name not in schema.features:
            raise unknown_key("[features]", name, schema.features)
    pooling = {name: feature.pooling for name, feature in features.items() if feature.pooling is not None}
    try:
        # checked with all, kept without what is the default: equal schemas have one fingerprint
        replace(schema, pooling=pooling)
        pooling = {name: way for name, way in pooling.items() if way != "mean"}
        return replace(schema, max_length=lengths, pooling=pooling)
    except ValueError as error:
        raise UserError(f"[features] {error}") from None
