"""The `[join]` section, the join's keys of `[labels.<name>]`, and what both make of each label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from springtide.stream.join_state import COUNTED, FIRST, SETTLED, JoinSettings
from springtide_client.array_types import Float32Array
from springtide_client.keys import encode_id
from springtide_client.schema import Schema
from springtide_client.system.settings import FINITE, SIZE, Settings

if TYPE_CHECKING:
    from springtide.stream.join.event_index import Matches

LabelValue = Literal["any", "count", "sum", "max", "last"]
LateRule = Literal["scale", "settle", "importance_weighted", "ignore"]
Release = Literal["window", "event"]
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
    score: Annotated[
        str | None,
        Meta(
            description="Field of the impressions with the probability that was served for the first label: the status "
            "compares it with the label, beside the trainer's own scores, which are of after the window. No feature."
        ),
    ] = None
    idle_seconds: Annotated[
        Seconds,
        Meta(description="A partition that is read to its end and silent for so long holds the others back no longer."),
    ] = 5.0
    release: Annotated[
        Release,
        Meta(
            description='When an impression is learned. "window": at the end of its window, whole. "event": at its '
            "first event, and at the end of the window if there is none: for who must learn a click within a second. "
            "It costs AUC where the impressions of an id come in bursts (0.02 to 0.20 measured on simulated delays): "
            "positives are learned before the negatives of their time. Impressions are held for a window, beyond "
            '`memory_bytes` in files. For labels of `value` "any", each with a window of its own.',
        ),
    ] = "window"
    memory_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            extra=SIZE,
            description="Memory for events and impressions that are held; more is held in scratch files beside the "
            "spill (`[table] disk_path`).",
        ),
    ] = 256 << 20
    disk_bytes: Annotated[
        int,
        Meta(
            ge=0,
            extra=SIZE,
            description="The most that the scratch files take. Beyond that nothing is read, and the status says so: "
            "events are never dropped.",
        ),
    ] = 8 << 30


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
    until_seconds: Annotated[
        Annotated[float, Meta(ge=0.001, le=3.2e7)] | None,
        Meta(
            description="How long after the impression an event that comes after the window still counts, as `late` "
            "says. Default: `window_seconds`, later ones are ignored.",
        ),
    ] = None
    late: Annotated[
        LateRule,
        Meta(
            description='What events between the two times change: `"scale"` divides predictions by the share that '
            'comes within the window, `"settle"` learns every impression again at the end, `"importance_weighted"` '
            "those with a late event, when it comes: for that all impressions are held until the end, beyond "
            '`[join] memory_bytes` in files, and read again after a restart. `"ignore"` changes nothing. Only '
            '`"importance_weighted"` holds impressions.',
        ),
    ] = "scale"
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
    until_ms: int = 0  # until then events are counted; 0: to the window's end
    late: LateRule = "scale"

    @property
    def has_late(self) -> bool:
        """True if events after the window count."""
        return self.until_ms > self.window_ms and self.late != "ignore"

    @property
    def is_weighed(self) -> bool:
        """True if samples of the label are weighed by the share of events within the window."""
        return self.has_late and self.late != "scale"

    @property
    def holds_impressions(self) -> bool:
        """True if impressions are held after the window, to be learned once more when a late event comes."""
        return self.has_late and self.late == "importance_weighted"

    @property
    def horizon_ms(self) -> int:
        """How long after an impression its events matter."""
        return self.until_ms if self.has_late else self.window_ms

    @property
    def looks(self) -> tuple["Look", ...]:
        """When the join looks at an impression for this label."""
        first = Look(self.window_ms, FIRST)
        return (first, Look(self.until_ms, GRADE_OF[self.late])) if self.has_late else (first,)

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


class Look(NamedTuple):
    """A time after an impression at which the join looks at its events, and what comes of it."""

    after_ms: int
    grade: int  # FIRST, SETTLED or COUNTED; a LATE sample is no look, but of an impression that is held after the first


# at the time until which events count, the join finds for a label with this rule ...
GRADE_OF = {"scale": COUNTED, "importance_weighted": COUNTED, "settle": SETTLED}
GRADE_NAMES = {SETTLED: "settled", COUNTED: "counted"}


def cursor_name(topic: str, look: Look, late_until_ms: int = 0) -> str:
    """The name of the cursor that reads the impressions for a look; `late_until_ms`: and holds them for late events."""
    grade = f"late-{late_until_ms}" if late_until_ms else GRADE_NAMES.get(look.grade)
    return f"{topic}+{look.after_ms}" if grade is None else f"{topic}+{look.after_ms}-{grade}"


def late_until_ms(labels: Sequence[JoinedLabel], look: Look) -> int:
    """How long after an impression of this look the first event makes one more sample of it; 0: none does."""
    ends = [label.until_ms for label in labels if label.holds_impressions and label.window_ms == look.after_ms]
    return max(ends, default=0) if look.grade == FIRST else 0


def looks_of(labels: Sequence[JoinedLabel]) -> list[Look]:
    """All looks of a join, those of first samples first, by their time."""
    return sorted({look for label in labels for look in label.looks}, key=lambda look: (look.grade, look.after_ms))


def cursor_slacks(impressions: str, labels: Sequence[JoinedLabel], release: Release = "window") -> dict[str, int]:
    """The cursors of a join: by name, how much later than a record of theirs a sample is released, in ms."""
    slacks = {
        cursor_name(impressions, look, late_until_ms(labels, look)): look.after_ms if release == "window" else 0
        for look in looks_of(labels)
    }
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

    @property
    def settings(self) -> JoinSettings:
        """What a version notes of the settings."""
        config = self.config
        return JoinSettings(
            config.key,
            config.release,
            round(1000 * config.lateness_seconds),
            round(1000 * config.early_seconds),
            round(1000 * config.dedupe_seconds),
        )

    @property
    def longest_ms(self) -> int:
        """After how long an impression is learned for the first time, at the latest."""
        return max(label.window_ms for label in self.labels)

    @property
    def learns_again(self) -> bool:
        """True if impressions may be learned more than once."""
        several = len({label.window_ms for label in self.labels}) > 1
        return several or self.config.release == "event" or any(label.is_weighed for label in self.labels)

    @property
    def held_ms(self) -> int:
        """For how long impressions are held until they are learned for the last time, once for each window; 0: none."""
        if self.config.release == "event":
            return sum(label.window_ms for label in self.labels)
        ends = {label.window_ms: late_until_ms(self.labels, label.looks[0]) for label in self.labels}
        return sum(max(0, until_ms - window_ms) for window_ms, until_ms in ends.items())

    @staticmethod
    def of(config: JoinConfig, sources: Mapping[str, LabelSource], schema: Schema) -> "JoinPlan | None":
        """Check the settings and put them together; None if nothing is joined. ValueError names what is wrong."""
        if not config.key:
            for name, source in sources.items():
                used = source.topic, source.window_seconds, source.until_seconds
                if any(value is not None for value in used) or source.where:
                    raise ValueError(f'[labels.{name}] needs [join] key = ["..."]: the fields that its events share')
            return None
        if len(set(config.key)) < len(config.key):
            raise ValueError("[join] key names a field twice")
        if config.score is not None and config.score in schema.names:
            raise ValueError(f"[join] score {config.score!r} has another role in [schema]: it was made of the features")
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
            labels.append(_joined_label(name, column, source, schema))
            by_topic.setdefault(source.topic, []).append((column, source))
        if config.release == "event":
            if any(label.value != "any" for label in labels):
                raise ValueError(
                    '[join] release = "event" is for labels of value "any": others are known when all came'
                )
            if any(label.has_late for label in labels):
                raise ValueError('[join] release = "event" and until_seconds: set late = "ignore"')
            if len({label.window_ms for label in labels}) < len(labels):
                raise ValueError(
                    '[join] release = "event" learns each label by itself: give each a window_seconds of its own, such '
                    "as 600 and 601"
                )
        return JoinPlan(
            config,
            tuple(labels),
            tuple(_event_fields(topic, found, config, schema) for topic, found in by_topic.items()),
        )


def _joined_label(name: str, column: int, source: LabelSource, schema: Schema) -> JoinedLabel:
    assert source.topic is not None
    assert source.window_seconds is not None
    window_ms = round(1000 * source.window_seconds)
    until_ms = window_ms if source.until_seconds is None else round(1000 * source.until_seconds)
    if until_ms < window_ms:
        raise ValueError(f"[labels.{name}] until_seconds must be at least window_seconds: it is how long events count")
    label = JoinedLabel(column, source.topic, window_ms, source.value, name, until_ms, source.late)
    if label.is_weighed and name in schema.links:
        raise ValueError(
            f'[labels.{name}] late = "{source.late}" weighs by a probability, which a value is not: '
            'set late = "scale" or "ignore"'
        )
    return label


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
