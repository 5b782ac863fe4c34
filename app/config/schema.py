"""The keys of `[schema]` and `[features.*]`: fields and their roles, and what is said of single features."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from springtide.app.config.document import unknown_key_error
from springtide.app.config.memory import MemorySections
from springtide.app.errors import UserError, user_errors
from springtide.embeddings.config import FeaturePolicy, FeatureTable, MinCount, Quota, TableConfig, Ttl
from springtide.embeddings.optimizer import RowOptimizer
from springtide_client.schema import Schema
from springtide_client.system.settings import Settings

Names = tuple[str, ...]


class FeatureAdmission(Settings, frozen=True, kw_only=True):
    """When an id of one feature gets a row."""

    min_count: Annotated[
        MinCount | None, Meta(description="An id of the feature gets a row when it is seen this many times.")
    ] = None


class FeatureConfig(Settings, frozen=True, kw_only=True):
    """How long a feature's rows live, how much memory they may take, which ids get one; how its lists are read."""

    max_length: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Longest list: `multi_value` keeps the first elements, `sequence` the last. Default: 50."),
    ] = None
    pooling: Annotated[
        Literal["mean", "sum", "max"] | None,
        Meta(description="How a `multi_value` list becomes one vector; an empty list gives zeros. Default: mean."),
    ] = None
    weighted: Annotated[
        bool,
        Meta(
            description="The ids of a `multi_value` list come with weights: an object `{id: weight}` or a list "
            'of `[id, weight]`. Not with `pooling = "max"`.'
        ),
    ] = False
    ttl_seconds: Annotated[
        Ttl | None,
        Meta(
            description="Rows not seen for this long (event time) are deleted. Features that share rows use the "
            "owner's value."
        ),
    ] = None
    quota_bytes: Annotated[
        Quota | None,
        Meta(description="Memory for the feature's rows; beyond it the feature's own rows are evicted first."),
    ] = None
    admission: Annotated[
        FeatureAdmission | None, Meta(description="Which ids get a row. Default: `[table] admission`.")
    ] = None

    dim: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        Meta(
            description="Numbers in a row of the feature. Default: `[table] dim`. The net sees the widest: others end "
            "in zeros."
        ),
    ] = None
    optimizer: Annotated[
        Mapping[str, Any] | None,
        Meta(
            description="Optimizer of the feature's rows. Default: `[table] optimizer`.", extra={"table": RowOptimizer}
        ),
    ] = None

    @property
    def min_count(self) -> int | None:
        """How often an id must be seen before it gets a row; None: as `[table] admission` says."""
        return None if self.admission is None else self.admission.min_count

    @property
    def row_keys(self) -> list[str]:
        """The keys set here that concern rows: of features that share rows, only the owner may set them."""
        keys = ("ttl_seconds", "quota_bytes", "admission", "dim", "optimizer")
        return [key for key in keys if getattr(self, key) is not None]


class BiasConfig(Settings, frozen=True, kw_only=True):
    """How the fields of `[schema] bias` are learned, and what predictions take in their place."""

    serve: Annotated[
        Literal["none", "request"] | Mapping[str, int | str],
        Meta(
            description='What predictions are made for: `{ position = 1 }`; `"none"`, as if the fields were missing, '
            'which is the mix of presentations that was seen; or `"request"`, what a request says. A field that is not '
            "named here is missing."
        ),
    ] = "none"
    drop: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="The share of samples that are learned as if these fields were missing, by a hash of where "
            "they are in the topic: so features must explain what the fields may not, and "
            '`serve = "none"` is calibrated.',
        ),
    ] = 0.1

    @property
    def values(self) -> Mapping[str, int | str]:
        """What is served by field; others are missing."""
        return {} if isinstance(self.serve, str) else self.serve


class SchemaConfig(Settings, frozen=True, kw_only=True):
    """Which field of a message is a label, an id, a list of ids, or a number."""

    label: Annotated[str | None, Meta(description="Field with the label, from 0 to 1. Required, or `labels`.")] = None
    labels: Annotated[Names, Meta(description="Fields with several labels; null masks one of them.")] = ()
    timestamp: Annotated[
        str | None, Meta(description="Field with the event time in milliseconds. Default: the record's timestamp.")
    ] = None
    weight: Annotated[str | None, Meta(description="Field with the sample's weight, at least 0. Default: 1.")] = None
    request: Annotated[
        str | None,
        Meta(
            description="Field with the id of the request that showed the sample: ranking metrics are by request. It "
            "may be one of `categorical`, and need not be a feature."
        ),
    ] = None
    propensity: Annotated[
        str | None,
        Meta(
            description="Field with the probability with which the sender's policy showed the item first; missing on "
            "records of other places. `[policies.*]` are valued by it."
        ),
    ] = None
    categorical: Annotated[Names, Meta(description="Fields with one id.")] = ()
    bias: Annotated[
        Names,
        Meta(
            description="Fields with one id that say how a sample was presented, such as its place: only the wide part "
            "has weights for them, apart from all features. Predictions take what `[bias] serve` says instead."
        ),
    ] = ()
    multi_value: Annotated[Names, Meta(description="Fields with a list of ids that is pooled.")] = ()
    sequence: Annotated[Names, Meta(description="Fields with an ordered list of ids.")] = ()
    dense: Annotated[Names, Meta(description="Fields with a number.")] = ()
    share: Annotated[
        Mapping[str, str],
        Meta(description='`{ last_items = "item_id" }`: the feature `last_items` shares the rows of `item_id`.'),
    ] = {}

    def to_schema(self, features: Mapping[str, FeatureConfig], memories: MemorySections, bias: BiasConfig) -> Schema:
        """Return the schema, with the lengths and pooling of its lists and what is remembered.

        UserError where the settings contradict.
        """
        if self.label is not None and self.labels:
            raise UserError("[schema] has both label and labels: keep one")
        labels = (self.label,) if self.label is not None else self.labels
        if not labels:
            raise UserError('[schema] needs label = "..." (or labels = [...])')
        with user_errors():
            schema = Schema(
                labels=labels,
                timestamp=self.timestamp,
                weight=self.weight,
                categorical=self.categorical,
                multi_value=self.multi_value,
                sequence=self.sequence,
                dense=self.dense,
                share=self.share,
                bias=self.bias,
                served_values=bias.values,
                serves_sent_bias=bias.serve == "request",
            )
        lengths = {name: feature.max_length for name, feature in features.items() if feature.max_length is not None}
        schema = memories.added_to(schema, lengths)
        for name in features:
            if name not in schema.features:
                raise unknown_key_error("[features]", name, schema.features)
        lengths |= memories.lengths()
        pooling = {name: feature.pooling for name, feature in features.items() if feature.pooling is not None}
        weighted = [name for name, feature in features.items() if feature.weighted]
        for memory in schema.memories:
            if not memory.is_sequence and memory.keep[0] in weighted:
                raise UserError(
                    f"[remember] {memory.of}: the weights of {memory.keep[0]!r} cannot be remembered yet: leave one of "
                    "both out"
                )
        with user_errors("[features] "):
            # checked with all, kept without what is the default: equal schemas have one fingerprint
            replace(schema, pooling=pooling, weighted=tuple(weighted))
            return replace(
                schema,
                max_length=lengths,
                pooling={name: way for name, way in pooling.items() if way != "mean"},
                weighted=tuple(name for name in schema.multi_value if name in weighted),
            )


def feature_policies(schema: Schema, features: Mapping[str, FeatureConfig]) -> dict[int, FeaturePolicy]:
    """Return the policies of the features that have one, by feature number; UserError where rows are shared."""
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
        policies[schema.number(name)] = FeaturePolicy(
            ttl_seconds=feature.ttl_seconds, quota_bytes=feature.quota_bytes, min_count=feature.min_count
        )
    return policies


def feature_tables(
    schema: Schema, features: Mapping[str, FeatureConfig], table: TableConfig
) -> dict[str, FeatureTable]:
    """Return the tables by name, the main one ("") first: features of equal `dim` and optimizer share one.

    {} where there is one table. UserError if the main one would have no id feature left.
    """
    wanted: dict[tuple[int, str], list[int]] = {}
    optimizers: dict[str, Mapping[str, Any] | None] = {"": None}
    owners = [name for name in schema.features if name not in schema.share]
    for name in owners:
        feature = features.get(name, FeatureConfig())
        optimizer, is_own = feature.optimizer, feature.optimizer is not None and feature.optimizer != table.optimizer
        key = str(sorted(optimizer.items())) if optimizer is not None and is_own else ""
        optimizers[key] = optimizer if is_own else None
        wanted.setdefault((feature.dim or table.dim, key), []).append(schema.number(name))
    main = wanted.pop((table.dim, ""), [])
    if not wanted:
        return {}
    if not main:
        dims = sorted({dim for dim, _ in wanted})
        raise UserError(
            f"every feature has a [features.*] dim or optimizer of its own, so nothing uses [table] dim = {table.dim}: "
            f"give [table] the dim ({', '.join(map(str, dims))}) and the optimizer of one of them"
        )
    tables = {"": FeatureTable(dim=table.dim, features=tuple(main))}
    for (dim, key), numbers in sorted(wanted.items(), key=lambda item: (item[0][0], min(item[1]))):
        own = optimizers[key]
        name = f"dim{dim}" if own is None else f"dim{dim}-{own.get('name', RowOptimizer().name)}"
        unique = next(n for n in (name, *(f"{name}-{number}" for number in range(2, 1 << 16))) if n not in tables)
        tables[unique] = FeatureTable(dim=dim, optimizer=own, features=tuple(sorted(numbers)))
    return tables
