"""Reads the configuration: one TOML file becomes the settings of every part. Imports no torch."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from springtide.app.config.document import check_keys, has_key, merge_document, unknown_key_error
from springtide.app.config.memory import CounterConfig, MemoryConfig, MemorySections, RememberConfig, SequenceConfig
from springtide.app.config.schema import BiasConfig, FeatureConfig, SchemaConfig, feature_policies, feature_tables
from springtide.app.errors import UserError, user_errors
from springtide.app.models.config import MODELS_WITHOUT_WIDE, ModelConfig
from springtide.app.models.losses.config import LabelConfig, LabelLoss, label_losses, links_of, require_whole_groups
from springtide.app.scores.config import PolicyConfig, ScoresConfig
from springtide.app.scores.policy_value import PolicyFields
from springtide.app.serving.config import ServeConfig
from springtide.app.training.config import GateConfig, TableSettings, TrainConfig
from springtide.app.training.ranks.config import ClusterConfig
from springtide.app.version_log.config import MIN_BYTES, LogConfig
from springtide.stream.config import SourceConfig
from springtide.stream.history.config import HistoryConfig
from springtide.stream.join.config import JoinConfig, JoinPlan
from springtide.stream.negatives import NegativeSampling, NegativesConfig
from springtide_client.errors import LogError
from springtide_client.log.directory import LogDirectory
from springtide_client.schema import Schema
from springtide_client.system.settings import Settings, format_value

DEFAULT_PATH = Path("springtide.toml")
SECTIONS: dict[str, type[Settings]] = {
    "source": SourceConfig,
    "join": JoinConfig,
    "history": HistoryConfig,
    "negatives": NegativesConfig,
    "schema": SchemaConfig,
    "bias": BiasConfig,
    "features": FeatureConfig,  # a table by feature
    "labels": LabelConfig,  # a table by label
    "memory": MemoryConfig,
    "sequences": SequenceConfig,  # a table by sequence
    "remember": RememberConfig,
    "counters": CounterConfig,  # a table by counter
    "table": TableSettings,
    "model": ModelConfig,
    "train": TrainConfig,
    "gate": GateConfig,
    "scores": ScoresConfig,
    "policies": PolicyConfig,  # a table by policy
    "log": LogConfig,
    "cluster": ClusterConfig,
    "serve": ServeConfig,
}

Section = TypeVar("Section", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings, checked."""

    name: str
    path: Path
    source: SourceConfig
    join: JoinPlan | None  # None: labels are fields of the samples
    history: HistoryConfig
    negatives: NegativeSampling | None  # None: all are learned
    schema: Schema
    features: Mapping[str, FeatureConfig]
    losses: tuple[LabelLoss, ...]  # of each label
    table: TableSettings
    model: ModelConfig
    train: TrainConfig
    gate: GateConfig
    scores: ScoresConfig
    policies: PolicyFields
    log: LogConfig
    cluster: ClusterConfig
    serve: ServeConfig


def load_config(
    path: Path | str | None = None,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    assignments: Sequence[Mapping[str, Any]] = (),
) -> Config:
    """Return the settings in a file; UserError names the first mistake, the value and what is allowed.

    `overrides` replace values of the file by section and key, as options of a command do; None leaves a value alone.
    `assignments` come first: what `parse_assignment` made of `--set`.
    """
    path = Path(path or DEFAULT_PATH)
    document = merge_document(read_document(path), assignments)
    check_sections("--set", document)
    for section, values in (overrides or {}).items():
        given = {key: value for key, value in values.items() if value is not None}
        document[section] = _require_table(f"[{section}]", document.get(section, {})) | given
    name = _name(document, path)
    features = {
        feature: bind(FeatureConfig, f"[features.{feature}]", table)
        for feature, table in _require_table("[features]", document.get("features", {})).items()
    }
    schema_config = bind(SchemaConfig, "[schema]", document.get("schema", {}))
    bias = bind(BiasConfig, "[bias]", document.get("bias", {}))
    if "bias" in document and not schema_config.bias:
        raise UserError("[bias] is for the fields of [schema] bias, and there are none: name them there")
    memories = _memories(document)
    schema = schema_config.to_schema(features, memories, bias)
    log = bind(LogConfig, "[log]", document.get("log", {}), path=Path("var") / name / "log")
    train = bind(TrainConfig, "[train]", document.get("train", {}))
    labels = {
        label: bind(LabelConfig, f"[labels.{label}]", keys)
        for label, keys in _require_table("[labels]", document.get("labels", {})).items()
    }
    losses = _losses(train, labels, schema)
    schema = numbered(replace(schema, links=links_of(losses, schema.labels)), log.path)
    for counter in schema.counters:
        for label in counter.count:
            if label in schema.links:
                raise UserError(
                    f"[counters.{counter.name}] count: {label!r} is a value, and only labels from 0 to 1 are counted: "
                    "name another"
                )
    table = bind(
        TableSettings,
        "[table]",
        document.get("table", {}),
        disk_path=str(Path("var") / name / "spill"),
        features=feature_policies(schema, features),
        memory_bytes=memories.memory.bytes,
    )
    table.check_score(schema)
    table = structs.replace(table, tables=feature_tables(schema, features, table))
    scores = bind(ScoresConfig, "[scores]", document.get("scores", {}), request=schema_config.request)
    with user_errors("[scores] "):
        scores.check_by(schema)
    with user_errors():
        scores.check_groups(schema)
    if train.by_request and scores.request is None:
        raise UserError("[train] by_request needs [schema] request: the field that says which samples belong together")
    table.check_schedule(train.schedule)
    # [table] disk_bytes is for spill and log; the spill keeps at least half of it
    log = structs.replace(log, log_bytes=min(log.log_bytes, max(table.disk_bytes // 2, MIN_BYTES)))
    model = _model(bind(ModelConfig, "[model]", document.get("model", {})), losses, schema)
    if schema.remembered and model.name in MODELS_WITHOUT_WIDE:
        raise UserError(
            f'[sequences], [remember] and [counters] do not go with [model] name = "{model.name}" yet: let records and '
            "requests bring these features"
        )
    source = bind(SourceConfig, "[source]", document.get("source", {}), log_path=log.path)
    join = _join(bind(JoinConfig, "[join]", document.get("join", {})), labels, schema, source.topic)
    history = _history(bind(HistoryConfig, "[history]", document.get("history", {})), schema)
    if join is not None and schema.remembered:
        memories.check_join(join.longest_ms, learns_again=join.learns_again)
    if join is not None and history.path is not None:
        raise UserError("[history] does not go with labels that are joined: leave out [history] or [join]")
    negatives = _negatives(bind(NegativesConfig, "[negatives]", document.get("negatives", {})), losses, schema, join)
    _check_record_fields(source, schema, join, labels, negatives, scores)
    group = scores.group if scores.group not in schema.categorical else None
    source = structs.replace(source, request_field=scores.request, group_field=group, check_field=memories.memory.check)
    source = structs.replace(source, bias_fields=tuple(schema.bias), bias_drop=bias.drop)
    if schema.bias and not model.decided().has_wide_part:
        raise UserError(
            "[schema] bias: only the wide part has weights for it, and this model has none: leave out [model] wide = "
            "false, or bias"
        )
    serve = bind(ServeConfig, "[serve]", document.get("serve", {}))
    if serve.explore:  # without it a model whose labels are all values can still be served
        with user_errors("[serve.explore] "):
            serve.exploration.place_of_label(schema)
    scores = structs.replace(scores, is_sampled=negatives is not None)
    policies = _policies(document.get("policies", {}), schema_config.propensity, schema, join, negatives)
    roles = {
        "[schema] request": (scores.request,),
        "[scores] group": (scores.group,),
        "[join] key": () if join is None else join.config.key,
        "[negatives] by": () if negatives is None else negatives.by,
        "[policies.*]": policies.numbers,
    }
    for role, names in roles.items():
        if source.check_field is not None and source.check_field in names:
            raise UserError(f"[memory] check: {source.check_field!r} is {role}: signals need a field of their own")
    source = structs.replace(source, number_fields=policies.numbers)
    if negatives is not None:
        if any(memory.is_sequence and memory.when is None for memory in schema.memories):
            raise UserError(
                '[sequences.*] when = "shown" does not go with [negatives], which drops most of what was shown before '
                "it is remembered: name a label"
            )
        if schema.counters:
            raise UserError(
                "[counters] do not go with [negatives], which drops most of what was shown before it is counted: leave "
                "one of both out"
            )
        source = structs.replace(source, sample_by=negatives.by, rate_field=negatives.rate_field)
    return Config(
        name=name,
        path=path,
        source=source,
        join=join,
        history=history,
        negatives=negatives,
        schema=schema,
        features=features,
        losses=losses,
        table=table,
        model=model.decided(),
        train=train,
        gate=bind(GateConfig, "[gate]", document.get("gate", {})),
        scores=scores,
        policies=policies,
        log=log,
        cluster=bind(ClusterConfig, "[cluster]", document.get("cluster", {})),
        serve=serve,
    )


def _memories(document: Mapping[str, Any]) -> MemorySections:
    """Return what the file says of what is remembered."""
    sequences = {
        name: bind(SequenceConfig, f"[sequences.{name}]", table)
        for name, table in _require_table("[sequences]", document.get("sequences", {})).items()
    }
    remember = _require_table("[remember]", document.get("remember", {}))
    for of, fields in remember.items():
        if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
            raise UserError(f"[remember] {of} must be a list of fields, not {format_value(fields)}")
    counters = {
        name: bind(CounterConfig, f"[counters.{name}]", table)
        for name, table in _require_table("[counters]", document.get("counters", {})).items()
    }
    config = bind(MemoryConfig, "[memory]", document.get("memory", {}))
    return MemorySections(config, sequences, {of: tuple(fields) for of, fields in remember.items()}, counters)


def _losses(train: TrainConfig, labels: Mapping[str, LabelConfig], schema: Schema) -> tuple[LabelLoss, ...]:
    """Return the loss of each label; UserError where `[labels.*]` does not fit the schema."""
    for label in labels:
        if label not in schema.labels:
            raise unknown_key_error("[labels]", label, schema.labels)
    with user_errors():
        return label_losses(train.loss, labels, schema)


def _join(join: JoinConfig, labels: Mapping[str, LabelConfig], schema: Schema, topic: str) -> JoinPlan | None:
    """Return how labels are joined, None if they are not; UserError where the settings do not fit each other."""
    with user_errors():
        plan = JoinPlan.of(join, labels, schema)
    topics = () if plan is None else (fields.topic for fields in plan.events)
    if topic in topics:
        raise UserError(
            f"[labels.*] topic = {topic!r} is [source] topic, which has the impressions: events have their own"
        )
    return plan


def _check_record_fields(
    source: SourceConfig,
    schema: Schema,
    join: JoinPlan | None,
    labels: Mapping[str, LabelConfig],
    negatives: NegativeSampling | None,
    scores: ScoresConfig,
) -> None:
    """UserError for a key or header of records that is no id."""
    ids = {
        *schema.categorical,
        *(() if negatives is None else negatives.by),
        scores.request,
        scores.group,
        *schema.bias,
    }
    if join is not None:
        ids |= {*join.config.key, *(name for label in labels.values() for name in label.where)}
    for name in source.record_fields:
        if name not in ids:
            raise UserError(
                f"[source] record_fields: {name!r} must be an id: a field of [schema] categorical, of [join] key, of "
                "[negatives] by, [schema] request or [scores] group"
            )


def _negatives(
    config: NegativesConfig, losses: Sequence[LabelLoss], schema: Schema, join: JoinPlan | None
) -> NegativeSampling | None:
    """Return which negatives are learned, None if all are; UserError where the settings do not fit each other."""
    with user_errors():
        sampling = NegativeSampling.of(config, schema, () if join is None else join.config.key)
        if sampling is not None:
            require_whole_groups(sampling, losses, schema)
    return sampling


def _policies(
    document: object,
    propensity: str | None,
    schema: Schema,
    join: JoinPlan | None,
    negatives: NegativeSampling | None,
) -> PolicyFields:
    """Return which numbers say what other policies would have earned; UserError where the settings do not fit."""
    policies = {
        name: bind(PolicyConfig, f"[policies.{name}]", table)
        for name, table in _require_table("[policies]", document).items()
    }
    if bool(policies) != (propensity is not None):
        raise UserError(
            "[schema] propensity and [policies.*] go together: the propensity of what was shown, and for each policy "
            "the field with its probability of showing the same"
        )
    if propensity is None:
        return PolicyFields()
    fields = {name: policy.fields for name, policy in policies.items()}
    others = {
        *schema.names,
        *(() if join is None else join.config.key),
        None if negatives is None else negatives.rate_field,
    }
    for section, name in (("[schema] propensity", propensity), *_named("[policies.{}]", fields)):
        if name in others:
            raise UserError(f"{section}: {name!r} has another role in [schema], [join] or [negatives]")
    if schema.labels[0] in schema.links:
        raise UserError(
            f"[policies.*]: the reward is the first label, and {schema.labels[0]!r} is a value, from any range"
        )
    return PolicyFields.of(propensity, fields, {name: policy.cap for name, policy in policies.items()})


def _named(section: str, fields: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(section.format(name), field) for name, own in fields.items() for field in own]


def _history(history: HistoryConfig, schema: Schema) -> HistoryConfig:
    """Return the settings; UserError where they need event times that the schema does not name."""
    if history.path is not None and schema.timestamp is None and (not history.offsets or history.order == "time"):
        raise UserError('[history] needs event times: set [schema] timestamp, or [history] offsets and order = "name"')
    return history


def _model(model: ModelConfig, losses: Sequence[LabelLoss], schema: Schema) -> ModelConfig:
    """Return the settings; without the wide part if it would have no label to learn. UserError if it is asked for.

    Or if items would have weighted lists, of which what servers know of items has no weights.
    """
    items = model.options.get("item", ()) if model.name in MODELS_WITHOUT_WIDE else ()
    for name in schema.weighted:
        if isinstance(items, (list, tuple)) and name in items:
            raise UserError(
                f"[features.{name}] weighted: lists of items have no weights: leave it out, or {name} out of [model] "
                "options item"
            )
    if not all(loss.is_value for loss in losses):
        return model
    if model.wide is True:
        raise UserError(
            "[model] wide = true: the wide part learns labels from 0 to 1, every label here is a value: leave it out"
        )
    return structs.replace(model, wide=False)


def numbered(schema: Schema, log_path: Path) -> Schema:
    """Return the schema with the feature numbers that its rows have in the log; UserError if the log has none left."""
    try:
        before = LogDirectory(log_path).newest_schema()
    except LogError:
        return schema  # reading the log reports what is wrong with it
    with user_errors():
        return schema if before is None else schema.continuing(before)


def read_document(path: Path) -> dict[str, Any]:
    """Return the file's TOML; UserError where it cannot be read or has an unknown section."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no {path}: write one (deploy/examples has some) or name one with --config") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name the configuration file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = ": write text in quotes" if str(error).startswith("Invalid value") else ""
        raise UserError(f"{path} is not valid TOML: {error}{hint}") from None
    check_sections(str(path), document)
    return document


def check_sections(where: str, document: Mapping[str, Any]) -> None:
    """Raise UserError for a section that does not exist."""
    for key in document:
        if key not in SECTIONS and key != "name":
            homes = [name for name, settings in SECTIONS.items() if has_key(settings, key)]
            if homes:
                raise UserError(f"{where} has {key!r} outside of a section: it belongs to [{'] or ['.join(homes)}]")
            raise unknown_key_error(where, key, ["name", *SECTIONS])


def bind(settings_class: type[Section], where: str, table: object, **given: object) -> Section:
    """Return the settings in a table of the file; UserError begins with `where`.

    `given` are values that the table may override, or that no file may name.
    """
    values = _require_table(where, table)
    check_keys(where, values, settings_class)
    with user_errors(f"{where} "):
        return settings_class(**(given | values))


def _name(document: Mapping[str, Any], path: Path) -> str:
    name = document.get("name")
    if name is None:
        raise UserError(f'{path} needs name = "...", above its first section')
    if not isinstance(name, str) or not name or name.startswith(".") or "/" in name:
        raise UserError(f'name must be a string that can name a folder, such as "movielens", not {format_value(name)}')
    return name


def _require_table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a table, not {format_value(value)}")
    return value
