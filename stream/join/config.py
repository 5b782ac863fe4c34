"""The `[join]` section, the join's keys of `[labels.<name>]`, and what both make of each label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from springtide_client.array_types import Float32Array
from springtide_client.keys import encode_id
from springtide_client.schema import Schema
from springtide_client.system.settings import FINITE, Settings

if TYPE_CHECKING:
    from springtide.stream.join.event_index import Matches

LabelValue = Literal["any", "count", "sum", "max", "last"]
Seconds = Annotated[float, Meta(ge=0, extra=FINITE)]


class JoinConfig(Settings, frozen=True, kw_only=True):
    """How the events of other topics become the labels of the impressions, which `[source] topic` has."""

    key: Annotated[
        tuple[str, ...],
        Meta(
            description="Fields that an impression and its events have in common, such as a request and an item. "
            "Default: nothing is joined, labels are fields of the samples."
        ),
    ] = ()
    lateness_seconds: Annotated[
        Seconds,
        Meta(description="How much older than the newest one before it in its partition a record may be."),
    ] = 10.0
    early_seconds: Annotated[
        Seconds, Meta(description="How much older than its impression an event may seem, where clocks differ.")
    ] = 5.0
    dedupe_seconds: Annotated[
        Seconds, Meta(description="An impression that follows one of its key within this time is a duplicate.")
    ] = 0.0
    partitioned_by_key: Annotated[
        bool,
        Meta(
            description="All impressions of a key are in one partition, as where the join's key is the record's key. "
            "Needed for `dedupe_seconds` with several ranks, each of which knows its own partitions alone."
        ),
    ] = False
    idle_seconds: Annotated[
        Seconds,
        Meta(description="A partition that is read to its end and silent for so long holds the others back no longer."),
    ] = 5.0


class LabelSource(Settings, frozen=True, kw_only=True):
    """From which events a label is made: the join's keys of `[labels.<name>]`."""

    topic: Annotated[
        str | None, Meta(description="With `[join]`: the topic of the label's events, such as clicks.")
    ] = None
    window_seconds: Annotated[
        Annotated[float, Meta(ge=0.001, le=3.2e7)] | None,
        Meta(
            description="How long after the impression an event counts. The impression is learned when it is over, so "
            "a window that holds 60 to 90 % of the events is enough.",
        ),
    ] = None
    value: Annotated[
        LabelValue,
        Meta(description="The label: 1 if there is any event, how many, or the sum, maximum or last value of `field`."),
    ] = "any"
    field: Annotated[str | None, Meta(description='A number of the events, for `value` = "sum", "max" or "last".')] = (
        None
    )
    where: Annotated[
        Mapping[str, str | int],
        Meta(description='Only events with these values count, such as `{ event = "click" }` in a topic of several.'),
    ] = msgspec.field(default_factory=dict)
    timestamp: Annotated[
        str | None,
        Meta(description="The events' time in ms. Default: `[schema] timestamp`, or Kafka's where that is not set."),
    ] = None


@dataclass(frozen=True)
class JoinedLabel:
    """One label: which events count, for how long, and as what."""

    column: int  # in the schema's labels
    topic: str
    window_ms: int
    value: LabelValue = "any"
    name: str = ""

    def value_of(self, found: "Matches") -> Float32Array:
        """The label of each impression, float32 (N); 0 without an event."""
        has_event_N = found.count_N > 0
        values = {
            "any": has_event_N,
            "count": found.count_N,
            "sum": found.sum_N,
            "max": found.max_N * has_event_N,
            "last": found.last_N * has_event_N,
        }
        label_N: Float32Array = values[self.value].astype(np.float32)
        return label_N


def cursor_name(topic: str, window_ms: int) -> str:
    """The name of the cursor that reads the impressions for labels of this window."""
    return f"{topic}+{window_ms}"


def cursor_slacks(impressions: str, labels: Sequence[JoinedLabel]) -> dict[str, int]:
    """The cursors of a join: by name, how much later than a record of theirs a sample is released, in ms."""
    slacks = {cursor_name(impressions, label.window_ms): label.window_ms for label in labels}
    return dict(sorted(slacks.items())) | dict.fromkeys((label.topic for label in labels), 0)


@dataclass(frozen=True)
class EventFields:
    """What is decoded of the events of one topic, and which of them count for which label."""

    topic: str
    schema: Schema
    labels: Mapping[
        int, tuple[Mapping[int, int], int | None]
    ]  # label -> (column of an id -> the id it must be), value's column


@dataclass(frozen=True)
class JoinPlan:
    """The join of one configuration."""

    config: JoinConfig
    labels: tuple[JoinedLabel, ...]  # in the schema's order
    events: tuple[EventFields, ...]  # of each topic

    @staticmethod
    def of(config: JoinConfig, sources: Mapping[str, LabelSource], schema: Schema) -> "JoinPlan | None":
        """Check the settings and put them together; None if nothing is joined. ValueError names what is wrong."""
        if not config.key:
            for name, source in sources.items():
                if source.topic is not None or source.window_seconds is not None or source.where:
                    raise ValueError(f'[labels.{name}] needs [join] key = ["..."]: the fields that its events share')
            return None
        if len(set(config.key)) < len(config.key):
            raise ValueError("[join] key names a field twice")
        for name in config.key:
            if name in (*schema.labels, *schema.lists, *schema.dense, schema.timestamp, schema.weight):
                raise ValueError(f"[join] key {name!r} must be an id, and has another role in [schema]")
        labels = []
        by_topic: dict[str, list[tuple[int, LabelSource]]] = {}
        for column, name in enumerate(schema.labels):
            source = sources.get(name, LabelSource())
            if source.topic is None or source.window_seconds is None:
                raise ValueError(f"[labels.{name}] needs topic and window_seconds: with [join] every label has events")
            if source.value != "any" and name not in schema.links:
                raise ValueError(
                    f'[labels.{name}] value = "{source.value}" is no probability: set loss = "mse", "msle" or "huber"'
                )
            if (source.field is None) != (source.value in ("any", "count")):
                raise ValueError(
                    f'[labels.{name}] value = "{source.value}" and field: sum, max and last are of a field'
                )
            labels.append(JoinedLabel(column, source.topic, round(1000 * source.window_seconds), source.value, name))
            by_topic.setdefault(source.topic, []).append((column, source))
        return JoinPlan(
            config,
            tuple(labels),
            tuple(_event_fields(topic, found, config, schema) for topic, found in by_topic.items()),
        )


def _event_fields(
    topic: str, sources: list[tuple[int, LabelSource]], config: JoinConfig, schema: Schema
) -> EventFields:
    times = {source.timestamp or schema.timestamp for _, source in sources}
    if len(times) > 1:
        raise ValueError(f"[labels.*] of the topic {topic!r} name several timestamps: its events have one")
    ids = tuple(dict.fromkeys(name for _, source in sources for name in source.where)) or config.key[:1]
    numbers = tuple(dict.fromkeys(source.field for _, source in sources if source.field is not None))
    labels = {
        column: (
            {ids.index(name): encode_id(value)[0] for name, value in source.where.items()},
            None if source.field is None else numbers.index(source.field),
        )
        for column, source in sources
    }
    (timestamp,) = times
    return EventFields(topic, Schema(labels=("",), timestamp=timestamp, categorical=ids, dense=numbers), labels)
