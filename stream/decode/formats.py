"""The formats of messages. Each is declared here once: how it is read and written, and which settings it has.

Imports no compiled code and no library of a format: both are loaded when a decoder is made.
"""

import json
import math
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from springtide_client.errors import EncodeError
from springtide_client.schema import Schema, field_paths
from springtide_client.system.json_text import decode_json
from springtide_client.system.settings import INTERNAL, SIZE, Settings

if TYPE_CHECKING:
    from springtide.stream.columns import RawRecords
    from springtide.stream.decode.arrow_columns import TableWriter
    from springtide.stream.decode.parsers.arrow_parser import ArrowParser
    from springtide.stream.decode.parsers.seen_set import SeenSet
    from springtide.stream.decode.rows import RecordParser


class MessageCodec(ABC):
    """Reads and writes the messages of one topic: a format with that topic's settings. One thread at a time."""

    def prepare(self, raw: "RawRecords") -> None:
        """Fetch what these messages need and the settings do not hold, such as schemas from a registry.

        Raises RetriableError where that is not to be had now; then nothing has been decoded, and nothing is lost.
        """
        return

    @abstractmethod
    def load(self, value: bytes) -> Any:
        """Return a message as Python objects: mappings with strings as keys, lists, strings, numbers, booleans, None.

        Raises EncodeError with a reason of its own, or msgspec's errors, ValueError, RecursionError.
        """

    @abstractmethod
    def from_json(self, message: bytes) -> bytes:
        """Return a JSON message in this format: tools make JSON. Raises what `load` raises."""

    def encode(self, message: bytes) -> bytes:
        """Return a JSON message in this format; one that is no JSON stays as it is, and becomes a dead letter."""
        try:
            return self.from_json(message)
        except (msgspec.MsgspecError, EncodeError, ValueError, RecursionError):
            return message

    def fast_path(
        self,
        schema: Schema,
        config: "DecodeConfig",
        seen: "SeenSet",
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> "RecordParser | None":
        """What writes most records straight into the columns, as `Decoder` would without it; None: there is none.

        `seen`: the ids whose string has been emitted. `keys`: further ids, whose strings are not. Without `has_labels`
        the labels are not in the records: they stay NaN.
        """
        return None

    def table_writer(self, schema: Schema, config: "DecodeConfig", *, keys: Sequence[str] = ()) -> "TableWriter | None":
        """What writes the rows of messages that are tables of samples; None: a message is one sample."""
        return None

    def table_parser(self, schema: Schema, config: "DecodeConfig", seen: "SeenSet") -> "ArrowParser | None":
        """What reads most messages that are tables without a library; `seen` as in `fast_path`. None: there is none."""
        return None

    def load_table(self, value: bytes) -> Any:
        """Return a message as an Arrow table, if there is a `table_writer`. Raises what `load` raises."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MessageFormat:
    """One format of messages, by the name that `[source] format` has for it."""

    name: str
    bad_reason: str  # why a message that is not of this format is a dead letter
    codec: "Callable[[DecodeConfig], MessageCodec]"
    settings: tuple[str, ...] = ()  # the keys of `[source]` that only this format and its like have
    check: "Callable[[DecodeConfig], None] | None" = None  # ValueError where they contradict, or one is missing

    def __post_init__(self) -> None:
        for text in (self.name, self.bad_reason):
            if not text.isidentifier():
                raise ValueError(f"a message format needs a name and a reason of lower-case words, not {text!r}")

    def load(self, load: Callable[[bytes], Any], value: bytes) -> Any:
        """Return what a codec's method makes of a message. Raises EncodeError with the dead letter's reason."""
        try:
            return load(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EncodeError(self.bad_reason, str(error)) from None

    def load_object(self, codec: MessageCodec, value: bytes) -> Mapping[str, Any]:
        """Load a message that holds an object. Raises EncodeError with the dead letter's reason."""
        record = self.load(codec.load, value)
        if not isinstance(record, dict):
            raise EncodeError("wrong_type", f"a record must be an object, not {type(record).__name__}")
        return record


class JsonCodec(MessageCodec):
    """JSON objects; of duplicate keys the last counts."""

    def __init__(self, config: "DecodeConfig") -> None: ...

    def load(self, value: bytes) -> Any:
        """Load JSON. Raises EncodeError `not_finite` where only that is wrong."""
        try:
            return decode_json(value)
        except msgspec.DecodeError:
            if _has_not_finite(value):
                raise EncodeError("not_finite", "a number is NaN, infinite or too large") from None
            raise

    def from_json(self, message: bytes) -> bytes:
        return message

    def fast_path(
        self,
        schema: Schema,
        config: "DecodeConfig",
        seen: "SeenSet",
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> "RecordParser | None":
        from springtide.stream.decode.parsers.json_parser import JsonParser

        if not are_paths_read(schema, keys):
            return None
        return JsonParser(schema, config, seen, keys=keys, has_labels=has_labels)


def are_paths_read(schema: Schema, keys: Sequence[str]) -> bool:
    """Return False where a key is what a field of the schema lies in: an id for one, an object for the other."""
    return field_paths(schema.names).items() <= field_paths([*schema.names, *keys]).items()


def _has_not_finite(value: bytes) -> bool:
    """Return True if nothing but NaN, Infinity or a number beyond float64 keeps this from being valid JSON."""
    found = False

    def parse(text: str) -> float:
        nonlocal found
        number = float(text)
        found = found or not math.isfinite(number)
        return number

    try:
        json.loads(value.decode(), parse_constant=parse, parse_float=parse)
    except (ValueError, RecursionError):
        return False
    return found


class MsgpackCodec(MessageCodec):
    """MessagePack maps with strings as keys; of duplicate keys the last counts. Timestamps are milliseconds."""

    def __init__(self, config: "DecodeConfig") -> None:
        self._decoder = msgspec.msgpack.Decoder()

    def load(self, value: bytes) -> Any:
        from springtide.stream.decode.plain_values import to_plain

        return to_plain(self._decoder.decode(value))

    def from_json(self, message: bytes) -> bytes:
        return msgspec.msgpack.encode(decode_json(message))

    def fast_path(
        self,
        schema: Schema,
        config: "DecodeConfig",
        seen: "SeenSet",
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> "RecordParser | None":
        if not are_paths_read(schema, keys):
            return None
        from springtide.stream.decode.parsers.binary_parser import BinaryParser, ProgramRecords
        from springtide.stream.decode.parsers.msgpack_parser import build_program, msgpack_kernel

        programs: list[Any] = []

        def choose(raw: "RawRecords", parser: BinaryParser) -> list[ProgramRecords]:
            if not programs:
                programs.append(build_program(parser))
            return [ProgramRecords(programs[0], raw.value_length_N >= 0, 0)]

        return BinaryParser(
            schema,
            config,
            seen,
            kernel=partial(msgpack_kernel, has_paths=bool(field_paths([*schema.names, *keys]))),
            choose=choose,
            keys=keys,
            has_labels=has_labels,
        )


def check_registry_url(url: str) -> None:
    """ValueError for what is no URL of a schema registry, or holds a password."""
    parts = urllib.parse.urlsplit(url)
    if parts.username or parts.password:
        raise ValueError("registry_url holds a password: put user:password into registry_auth_file instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f'registry_url must be the URL of a schema registry, such as "http://host:8081", not "{url}"')


def _avro(config: "DecodeConfig") -> MessageCodec:
    from springtide.stream.decode.avro import AvroCodec

    return AvroCodec(config)


def _arrow(config: "DecodeConfig") -> MessageCodec:
    from springtide.stream.decode.arrow import ArrowCodec

    return ArrowCodec(config)


def _check_avro(config: "DecodeConfig") -> None:
    if (config.schema_file is None) == (config.registry_url is None):
        raise ValueError(
            'format = "avro" needs either schema_file (messages are bare records) or registry_url (each begins with '
            "the header of a schema registry)"
        )


def _protobuf(config: "DecodeConfig") -> MessageCodec:
    from springtide.stream.decode.protobuf import ProtobufCodec

    return ProtobufCodec(config)


def _check_protobuf(config: "DecodeConfig") -> None:
    if (config.descriptor_file is None) == (config.registry_url is None):
        raise ValueError(
            'format = "protobuf" needs either descriptor_file (messages are bare) or registry_url (each begins with '
            "the header of a schema registry)"
        )
    if config.descriptor_file is not None and config.message is None:
        raise ValueError('descriptor_file needs message, the full name of the type, such as "shop.Click"')


REGISTRY = ("registry_url", "registry_auth_file")
JSON = MessageFormat(name="json", bad_reason="bad_json", codec=JsonCodec)
MSGPACK = MessageFormat(name="msgpack", bad_reason="bad_msgpack", codec=MsgpackCodec)
AVRO = MessageFormat(
    name="avro",
    bad_reason="bad_avro",
    codec=_avro,
    settings=("schema_file", "reader_schema_file", *REGISTRY),
    check=_check_avro,
)
PROTOBUF = MessageFormat(
    name="protobuf",
    bad_reason="bad_protobuf",
    codec=_protobuf,
    settings=("descriptor_file", "message", *REGISTRY),
    check=_check_protobuf,
)
ARROW = MessageFormat(name="arrow", bad_reason="bad_arrow", codec=_arrow)

FORMATS = {declared.name: declared for declared in (JSON, MSGPACK, AVRO, PROTOBUF, ARROW)}
# every key of `[source]` that only some formats have
FORMAT_SETTINGS = {key for declared in FORMATS.values() for key in declared.settings}

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(FORMATS)]


KEY, HEADER = "key", "header:"  # ids that are beside a message


def check_record_fields(names: Sequence[str]) -> None:
    """ValueError for what is neither the key nor a header, and for what is named twice."""
    for name in names:
        if name != KEY and not (name.startswith(HEADER) and len(name) > len(HEADER)):
            raise ValueError(f'record_fields are "{KEY}" and "{HEADER}NAME", not "{name}"')
    if len(set(names)) < len(names):
        raise ValueError("record_fields names a field twice")


class DecodeConfig(Settings, frozen=True, kw_only=True):
    """How the messages of a topic are decoded: the keys of `[source]` that a decoder reads."""

    format: Annotated[FormatName, Meta(description="Format of the messages.")] = JSON.name
    schema_file: Annotated[
        Path | None, Meta(description="Avro: the writer's schema (`.avsc`) of messages that are bare records.")
    ] = None
    reader_schema_file: Annotated[
        Path | None, Meta(description="Avro: the schema that records are resolved to. Default: their writer's.")
    ] = None
    descriptor_file: Annotated[
        Path | None,
        Meta(description="Protobuf: the descriptor set of `protoc --include_imports --descriptor_set_out=`."),
    ] = None
    message: Annotated[
        str | None,
        Meta(description="Protobuf: full name of the message, such as `shop.Click`. With a registry: of all messages."),
    ] = None
    registry_url: Annotated[
        str | None,
        Meta(description="Schema registry of messages that begin with its header, such as `http://host:8081`."),
    ] = None
    registry_auth_file: Annotated[
        Path | None, Meta(description="File whose first line is `user:password`, for the schema registry.")
    ] = None
    max_message_bytes: Annotated[int, Meta(ge=1, extra=SIZE, description="Larger messages become dead letters.")] = (
        1 << 20
    )
    max_future_seconds: Annotated[
        float, Meta(description="Records whose timestamp is further in the future become dead letters.")
    ] = 60.0
    record_fields: Annotated[
        tuple[str, ...],
        Meta(
            description='Ids that are not in the message: `"key"` and `"header:NAME"` are then the record\'s, wherever '
            "`[schema] categorical`, `[join] key`, `[negatives] by`, `[schema] request` or `[scores] "
            "group` have this name. In files a column of that name."
        ),
    ] = ()
    # the fields with a sample's request and group: `[schema] request` and, if it is no feature, `[scores] group`
    request_field: Annotated[str | None, Meta(extra=INTERNAL)] = None
    group_field: Annotated[str | None, Meta(extra=INTERNAL)] = None
    check_field: Annotated[str | None, Meta(extra=INTERNAL)] = None  # `[memory] check`
    # `[schema] bias`, and the share of samples that are learned without
    bias_fields: Annotated[tuple[str, ...], Meta(extra=INTERNAL)] = ()
    bias_drop: Annotated[float, Meta(extra=INTERNAL)] = 0.0
    # fields with numbers that are no features
    number_fields: Annotated[tuple[str, ...], Meta(extra=INTERNAL)] = ()
    # what `[negatives]` says: the fields by which negatives are kept, and the field with the sender's rate
    sample_by: Annotated[tuple[str, ...], Meta(extra=INTERNAL)] = ()
    rate_field: Annotated[str | None, Meta(extra=INTERNAL)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        declared = self.message_format
        for key in sorted(FORMAT_SETTINGS - {*declared.settings}):
            if getattr(self, key) is not None:
                owners = " or ".join(f'"{name}"' for name, each in FORMATS.items() if key in each.settings)
                raise ValueError(f'{key} is of format = {owners}: leave it out with "{self.format}"')
        if self.registry_url is not None:
            check_registry_url(self.registry_url)
        elif self.registry_auth_file is not None:
            raise ValueError("registry_auth_file needs registry_url")
        if declared.check is not None:
            declared.check(self)
        check_record_fields(self.record_fields)

    @property
    def message_format(self) -> MessageFormat:
        """The format that the topic's messages have."""
        return FORMATS[self.format]

    def with_json(self) -> Self:
        """Return these settings for rows of files: messages in JSON, without a key and headers beside them."""
        return msgspec.structs.replace(self, format=JSON.name, record_fields=(), **dict.fromkeys(FORMAT_SETTINGS))

    def open_codec(self) -> MessageCodec:
        """Return what reads and writes the topic's messages; FormatError where the settings cannot be used."""
        return self.message_format.codec(self)
