"""The keys of `[memory]`, `[sequences.*]`, `[remember]` and `[counters.*]`: what the stream is remembered for."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from springtide.app.errors import UserError, user_errors
from springtide_client.counters import MAX_HALF_LIFE_TICKS, SHOWN, Counter, parse_half_life
from springtide_client.memory import MAX_PENDING_TICKS, MAX_ROW, Memory, least_tick_ms
from springtide_client.schema import Schema
from springtide_client.system.settings import FINITE, SIZE, Settings

NAME = re.compile(r"[A-Za-z0-9_-]+")
Ids = tuple[str, ...]
MAX_NUMBERS = 32  # features of one counter


class MemoryConfig(Settings, frozen=True, kw_only=True):
    """When what happened may be read, and the memory for it."""

    tick_seconds: Annotated[
        float,
        Meta(
            ge=0.001,
            le=86_400,
            description="What became known in one tick is read from the second tick after it on: samples read what is "
            "one to two ticks old. A longer tick needs less room, and lets a server be further behind.",
        ),
    ] = 1.0
    known: Annotated[
        Literal["event", "record"],
        Meta(
            description='When a record became known: "event", at its event time and `delay_seconds`; "record", at its '
            "Kafka timestamp, which is right for topics that are written live."
        ),
    ] = "event"
    delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            extra=FINITE,
            description="How long after its event time a record is in the topic, at most. Too short a delay lets a "
            "sample read what a server did not know yet.",
        ),
    ] = 0.0
    lateness_seconds: Annotated[
        float, Meta(ge=0, extra=FINITE, description="Disorder of the topic's event times that changes nothing.")
    ] = 2.0
    check: Annotated[
        str | None,
        Meta(
            description="The field in which a record brings back `signals` of the answer that it was served with. The "
            "trainer computes them again and counts how many are equal. Default: no check.",
        ),
    ] = None
    bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            extra=SIZE,
            description="Memory for rows of `[sequences.*]`, `[remember]` and `[counters.*]`, beside `[table] "
            "device_bytes`; beyond it they go to the disk, as other rows do.",
        ),
    ] = 512 << 20


class SequenceConfig(Settings, frozen=True, kw_only=True):
    """The last ids that a user, or another id, met: sequence features that no record and no request brings."""

    key: Annotated[str, Meta(description="The `categorical` field whose ids have a sequence each, such as `user_id`.")]
    keep: Annotated[
        Ids,
        Meta(
            min_length=1,
            description="`categorical` fields that become sequences: `item_id` of `[sequences.clicked]` is the feature "
            "`clicked.item_id`, which shares the rows of `item_id`, so the net alone sees it.",
        ),
    ]
    when: Annotated[
        str, Meta(description='The label that must be above 0 for a sample to be an element, or "shown": all are.')
    ] = SHOWN
    last: Annotated[int, Meta(ge=1, description="Elements that are kept.")] = 50
    distinct: Annotated[
        str | None,
        Meta(description="A field of `keep`: each of its ids is in the sequence once, at its newest. Default: none."),
    ] = None
    gap: Annotated[
        bool,
        Meta(
            description="Make the feature `clicked.gap` besides, for `time_gaps` of a net: the bit length of the "
            "seconds from each element to the sample. It has rows of its own, and so weights in the wide part."
        ),
    ] = False
    ttl_seconds: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Older elements are not read. Default: no limit.")
    ] = None


class RememberConfig(Settings, frozen=True, kw_only=True):
    """By id, the fields that have its newest value: `item_id = ["category", "price"]`. Requests need not bring them."""


class CounterConfig(Settings, frozen=True, kw_only=True):
    """Decayed counts, rates and age of an id, a pair of ids, or everything: numbers that no record brings."""

    key: Annotated[
        str | Ids,
        Meta(description="A `categorical` field, two of them for counts of pairs, or `[]`: one count of everything."),
    ]
    count: Annotated[
        Ids,
        Meta(
            min_length=1,
            description='What is counted: "shown", every sample; a label: its sum, in 256ths. Weights of samples do '
            "not count.",
        ),
    ]
    half_lives: Annotated[
        Ids,
        Meta(
            min_length=1,
            description='Times in which a count is halved, such as "10m", "1h", "7d". One of 0.7 windows gives a '
            "steady stream the count of the window.",
        ),
    ]
    rates: Annotated[
        Mapping[str, Ids],
        Meta(
            description='`{ ctr = ["click", "shown"] }`: the logarithm of a rate beside that of everything; 0 where '
            "nothing is known."
        ),
    ] = {}
    prior: Annotated[
        float,
        Meta(gt=0, extra=FINITE, description="Samples at the rate of everything by which a rate is smoothed."),
    ] = 20.0
    features: Annotated[
        Literal["default"] | Ids,
        Meta(
            description='Which numbers are features: `["shown.10m", "ctr.1h", "age"]`, at most 32. "default": counts '
            "of the first event, rates, age."
        ),
    ] = "default"


@dataclass(frozen=True)
class MemorySections:
    """What the file says in the four sections."""

    memory: MemoryConfig
    sequences: Mapping[str, SequenceConfig]
    remember: Mapping[str, Ids]
    counters: Mapping[str, CounterConfig]

    def added_to(self, schema: Schema, lengths: Mapping[str, int]) -> Schema:
        """Return the schema with what is remembered; UserError where the settings do not fit it.

        `lengths`: the `max_length` of features that have one.
        """
        common = self._common()
        memories = [self._sequence(name, one, schema, common) for name, one in self.sequences.items()]
        for of, fields in self.remember.items():
            memories += [self._field(of, field, schema, lengths, common) for field in fields]
        counters = [self._counter(name, one, schema, common) for name, one in self.counters.items()]
        if not memories and not counters:
            self._check_field(schema)
            return schema
        for memory in memories:
            if memory.dim > MAX_ROW:
                raise UserError(
                    f"{_where(memory)}: a row would have {memory.dim} numbers, {MAX_ROW} are possible: keep fewer "
                    "elements or fields, or set a shorter max_length of the list"
                )
        made = [memory for memory in memories if memory.is_sequence]
        share = {f"{memory.name}.{field}": schema.share.get(field, field) for memory in made for field in memory.keep}
        names = [name for memory in made for name in memory.features]
        with user_errors():
            schema = replace(
                schema,
                sequence=(*schema.sequence, *names),
                dense=(*schema.dense, *(name for counter in counters for name in counter.features)),
                share={**schema.share, **share},
                memories=tuple(memories),
                counters=tuple(counters),
            )
        self._check_field(schema)
        return schema

    def check_join(self, window_ms: int, *, learns_again: bool) -> None:
        """UserError if impressions are learned later than `[memory]` says. `window_ms`: the longest of their labels."""
        if learns_again:
            raise UserError(
                "[sequences], [remember] and [counters] do not go with impressions that are learned more than once "
                'yet: what they have read is gone by then. Leave out [join] release = "event" and late = "settle" or '
                '"importance_weighted" of [labels.*], and give all labels one window_seconds'
            )
        if self.memory.known != "event" or 1000 * self.memory.delay_seconds < window_ms:
            raise UserError(
                '[memory]: a joined impression is known when its window ends: set known = "event" and delay_seconds to '
                f"{window_ms / 1000:g} or more"
            )

    def lengths(self) -> dict[str, int]:
        """Return the `max_length` of the sequences that are made."""
        return {
            name: one.last
            for section, one in self.sequences.items()
            for name in (*(f"{section}.{field}" for field in one.keep), *([f"{section}.gap"] if one.gap else []))
        }

    def _common(self) -> dict[str, Any]:
        memory = self.memory
        common: dict[str, Any] = {
            "tick_ms": round(1000 * memory.tick_seconds),
            "known": memory.known,
            "delay_ms": round(1000 * memory.delay_seconds),
            "lateness_ms": round(1000 * memory.lateness_seconds),
        }
        probe = Memory(name="", of="", keep=(), last=1, **common)
        if (self.sequences or self.remember or self.counters) and probe.pending_ticks > MAX_PENDING_TICKS:
            seconds = least_tick_ms(probe.delay_ms, probe.lateness_ms) / 1000
            raise UserError(
                f"[memory] delay_seconds + lateness_seconds are {probe.pending_ticks - 3} ticks, at most "
                f"{MAX_PENDING_TICKS - 3} are possible: raise tick_seconds to {seconds:g} or more"
            )
        return common

    def _check_field(self, schema: Schema) -> None:
        if (name := self.memory.check) is None:
            return
        if name == "":
            raise UserError('[memory] check must name a field, not ""')
        if not (self.sequences or self.remember or self.counters):
            raise UserError(
                "[memory] check needs [sequences.*], [remember] or [counters.*]: nothing is remembered to check"
            )
        if name in schema.names:
            raise UserError(
                f"[memory] check: {name!r} has another role in [schema]: records bring the signals of an answer in a "
                "field of their own"
            )
        if schema.timestamp is None:
            raise UserError(
                "[memory] check needs [schema] timestamp: records bring back `time` of their answer there, "
                "as otherwise what they read is of another tick"
            )

    def _sequence(self, name: str, config: SequenceConfig, schema: Schema, common: Mapping[str, Any]) -> Memory:
        where = f"[sequences.{name}]"
        if not NAME.fullmatch(name):
            raise UserError(f"{where}: the name is letters, digits, - and _")
        _require(f"{where} key", [config.key], schema.categorical, "[schema] categorical")
        _require(f"{where} keep", config.keep, schema.categorical, "[schema] categorical")
        if len(set(config.keep)) < len(config.keep):
            raise UserError(f"{where} keep names a field twice")
        if config.distinct is not None:
            _require(f"{where} distinct", [config.distinct], config.keep, "keep")
        if config.when != SHOWN:
            _require(f"{where} when", [config.when], schema.labels, 'the labels, and "shown"')
        return Memory(
            name=name,
            of=config.key,
            keep=config.keep,
            last=config.last,
            when=None if config.when == SHOWN else config.when,
            distinct=config.distinct,
            ttl_ms=1000 * (config.ttl_seconds or 0),
            num_values=len(config.keep),
            has_gap=config.gap,
            **common,
        )

    def _counter(self, name: str, config: CounterConfig, schema: Schema, common: Mapping[str, Any]) -> Counter:
        where = f"[counters.{name}]"
        if not NAME.fullmatch(name):
            raise UserError(f"{where}: the name is letters, digits, - and _")
        if name in self.sequences:
            raise UserError(f"{where}: [sequences.{name}] has the same name: rename one of both")
        key = (config.key,) if isinstance(config.key, str) else config.key
        if len(key) > 2 or len(set(key)) < len(key):
            raise UserError(f"{where} key names {', '.join(key)}: one id, two different ones, or [] for everything")
        _require(f"{where} key", key, schema.categorical, "[schema] categorical")
        _require(f"{where} count", config.count, (SHOWN, *schema.labels), 'the labels, and "shown"')
        if SHOWN in schema.labels:
            raise UserError(f'{where} count: a label is called "shown", which is every sample: rename the label')
        for what, names in (("count", config.count), ("half_lives", config.half_lives)):
            if len(set(names)) < len(names):
                raise UserError(f"{where} {what} names {max(names, key=names.count)!r} twice")
        for text in config.half_lives:
            with user_errors(f"{where} half_lives: "):
                if parse_half_life(text) < common["tick_ms"]:
                    raise ValueError(f"{text!r} is shorter than a tick: lower [memory] tick_seconds, or name a longer")
                if parse_half_life(text) > MAX_HALF_LIFE_TICKS * common["tick_ms"]:
                    seconds = -(-parse_half_life(text) // MAX_HALF_LIFE_TICKS) / 1000
                    raise ValueError(
                        f"{text!r} is more than {MAX_HALF_LIFE_TICKS:,} ticks, in which a count would not fade: name a "
                        f"shorter, or set [memory] tick_seconds to {seconds:,g} or more"
                    )
        ticks = [round(parse_half_life(text) / common["tick_ms"]) for text in config.half_lives]
        if len(set(ticks)) < len(ticks):
            raise UserError(f"{where} half_lives: two are equal in ticks: leave out one of them")
        for rate, events in config.rates.items():
            if len(set(events)) < len(events):
                raise UserError(f"{where} rates: {rate!r} is of {events[0]!r} beside itself, which is always 1")
            if not NAME.fullmatch(rate) or rate in config.count:
                raise UserError(f"{where} rates: {rate!r} must be letters, digits, - and _, and no name of count")
            if len(events) != 2 or not key:
                hint = "everything is what rates are beside: name a key" if not key else 'give two, ["click", "shown"]'
                raise UserError(f"{where} rates: {rate!r} has {len(events)} events: {hint}")
            _require(f"{where} rates {rate}", events, config.count, "count")
        rates = {rate: (events[0], events[1]) for rate, events in config.rates.items()}
        own = {"key": key, "count": config.count, "half_lives": config.half_lives, "rates": rates, **common}
        counter = Counter(name=name, prior=config.prior, numbers=(), **own)
        numbers = counter.default_numbers if config.features == "default" else tuple(config.features)
        _require(f"{where} features", numbers, counter.all_numbers, "the numbers that it makes")
        if not 0 < len(numbers) <= MAX_NUMBERS or len(set(numbers)) < len(numbers):
            raise UserError(
                f"{where}: {len(numbers)} features, {len(set(numbers))} different ones: 1 to {MAX_NUMBERS} are "
                "possible, each once: name those of use in features, or fewer half_lives"
            )
        counter = replace(counter, numbers=numbers)
        for feature in counter.features:
            if feature in (*schema.names, *(name for one in self.sequences.values() for name in one.keep)):
                raise UserError(f"{where} makes {feature!r}, which [schema] has too: rename the section or the field")
        if counter.dim > MAX_ROW:
            raise UserError(
                f"{where}: a row would have {counter.dim} numbers, {MAX_ROW} are possible: name fewer events or "
                "half_lives"
            )
        return counter

    def _field(
        self, of: str, field: str, schema: Schema, lengths: Mapping[str, int], common: Mapping[str, Any]
    ) -> Memory:
        where = "[remember]"
        _require(where, [of], schema.categorical, "[schema] categorical")
        fields = (*schema.categorical, *schema.multi_value, *schema.dense)
        _require(f"{where} {of}", [field], fields, "[schema] categorical, multi_value and dense")
        if field in self.remember:
            raise UserError(f"{where} {of}: {field!r} is an id that other fields are remembered by")
        if sum(field in own for own in self.remember.values()) > 1 or self.remember[of].count(field) > 1:
            raise UserError(f"{where} names {field!r} twice: a field is remembered by one id")
        if any(field in (one.key, *one.key) for one in self.counters.values()):
            raise UserError(f"{where} {of}: {field!r} is the key of a counter, which needs the record's own value")
        if any(field in (one.key, *one.keep) for one in self.sequences.values()):
            raise UserError(f"{where} {of}: {field!r} is in a sequence, which needs the record's own value")
        num_values = 1
        if field in schema.multi_value:
            num_values = 1 + lengths.get(field, schema.length_limit(field))
        return Memory(
            name=f"{of}.{field}", of=of, keep=(field,), last=1, num_values=num_values, is_sequence=False, **common
        )


def _where(memory: Memory) -> str:
    return f"[sequences.{memory.name}]" if memory.is_sequence else f"[remember] {memory.of}"


def _require(where: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = tuple(known)
    for name in names:
        if name not in known:
            raise UserError(f"{where}: {name!r} is none of {what} ({', '.join(known)})")
