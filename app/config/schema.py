"""The keys of `[schema]`, and the schema that they and `[features.*]` make."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from springtide.app.config.features import FeatureConfig
from springtide.app.config.unknown_keys import unknown_key_error
from springtide.app.errors import UserError
from springtide_client.schema import Schema
from springtide_client.system.settings import Settings

Names = tuple[str, ...]


class SchemaConfig(Settings, frozen=True, kw_only=True):
    """Which field of a message is a label, an id, a list of ids, or a number."""

    label: Annotated[str | None, Meta(description="Field with the label, from 0 to 1. Required, or `labels`.")] = None
    labels: Annotated[Names, Meta(description="Fields with several labels; null masks one of them.")] = ()
    timestamp: Annotated[
        str | None, Meta(description="Field with the event time in milliseconds. Default: the record's timestamp.")
    ] = None
    weight: Annotated[str | None, Meta(description="Field with the sample's weight, at least 0. Default: 1.")] = None
    categorical: Annotated[Names, Meta(description="Fields with one id.")] = ()
    multi_value: Annotated[Names, Meta(description="Fields with a list of ids that is pooled.")] = ()
    sequence: Annotated[Names, Meta(description="Fields with an ordered list of ids.")] = ()
    dense: Annotated[Names, Meta(description="Fields with a number.")] = ()
    share: Annotated[
        Mapping[str, str],
        Meta(description='`{ last_items = "item_id" }`: the feature `last_items` shares the rows of `item_id`.'),
    ] = {}

    def to_schema(self, features: Mapping[str, FeatureConfig]) -> Schema:
        """Return the schema, with the lengths and pooling of its lists; UserError where the settings contradict."""
        if self.label is not None and self.labels:
            raise UserError("[schema] has both label and labels: keep one")
        labels = (self.label,) if self.label is not None else self.labels
        if not labels:
            raise UserError('[schema] needs label = "..." (or labels = [...])')
        try:
            schema = Schema(
                labels=labels,
                timestamp=self.timestamp,
                weight=self.weight,
                categorical=self.categorical,
                multi_value=self.multi_value,
                sequence=self.sequence,
                dense=self.dense,
                share=self.share,
            )
        except ValueError as error:
            raise UserError(str(error)) from None
        for name in features:
            if name not in schema.features:
                raise unknown_key_error("[features]", name, schema.features)
        lengths = {name: feature.max_length for name, feature in features.items() if feature.max_length is not None}
        pooling = {name: feature.pooling for name, feature in features.items() if feature.pooling is not None}
        try:
            # checked with all, kept without what is the default: equal schemas have one fingerprint
            replace(schema, pooling=pooling)
            return replace(schema, max_length=lengths, pooling={n: way for n, way in pooling.items() if way != "mean"})
        except ValueError as error:
            raise UserError(f"[features] {error}") from None
