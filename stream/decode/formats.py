"""The formats of messages. Each is declared here once: how it is read, how it is written, its fast path if it has one.

Imports no compiled code: a fast path is loaded when a decoder is made.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from springtide_client.errors import EncodeError
from springtide_client.system.json_text import decode_json
from springtide_client.system.settings import SIZE, Settings

if TYPE_CHECKING:
    from springtide.stream.decode.rows import RecordParser


@dataclass(frozen=True, kw_only=True)
class MessageFormat:
    """One format of messages, by the name that `[source] format` has for it."""

    name: str
    bad_reason: str  # why a message that is not of this format is a dead letter
    # a message as Python objects: mappings with strings as keys, lists, strings, numbers, booleans, None. Raises
    # EncodeError, msgspec's errors, ValueError, RecursionError
    load: Callable[[bytes], Any]
    from_json: Callable[[bytes], bytes]  # a JSON message in this format: tools make JSON. Raises what `load` raises
    # writes most records straight into the columns, as `Decoder` would without it; None: there is none
    fast_path: "Callable[[], type[RecordParser]] | None" = None

    def __post_init__(self) -> None:
        for text in (self.name, self.bad_reason):
            if not text.isidentifier():
                raise ValueError(f"a message format needs a name and a reason of lower-case words, not {text!r}")

    def load_object(self, value: bytes) -> Mapping[str, Any]:
        """Load a message that holds an object. Raises EncodeError with the dead letter's reason."""
        try:
            record = self.load(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EncodeError(self.bad_reason, str(error)) from None
        if not isinstance(record, dict):
            raise EncodeError("wrong_type", f"a record must be an object, not {type(record).__name__}")
        return record

    def encode(self, message: bytes) -> bytes:
        """Return a JSON message in this format; one that is no JSON stays as it is, and becomes a dead letter."""
        try:
            return self.from_json(message)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return message


def load_json(value: bytes) -> Any:
    """Load JSON; of duplicate keys the last counts. Raises EncodeError `not_finite` where only that is wrong."""
    try:
        return decode_json(value)
    except msgspec.DecodeError:
        if _has_not_finite(value):
            raise EncodeError("not_finite", "a number is NaN, infinite or too large") from None
        raise


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


def _json_parser() -> "type[RecordParser]":
    from springtide.stream.decode.parsers.json_parser import JsonParser

    return JsonParser


JSON = MessageFormat(name="json", bad_reason="bad_json", load=load_json, from_json=bytes, fast_path=_json_parser)

FORMATS = {declared.name: declared for declared in (JSON,)}

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(FORMATS)]


class DecodeConfig(Settings, frozen=True, kw_only=True):
    """How the messages of a topic are decoded: the keys of `[source]` that a decoder reads."""

    format: Annotated[FormatName, Meta(description="Format of the messages.")] = JSON.name
    max_message_bytes: Annotated[int, Meta(ge=1, extra=SIZE, description="Larger messages become dead letters.")] = (
        1 << 20
    )
    max_future_seconds: Annotated[
        float, Meta(description="Records whose timestamp is further in the future become dead letters.")
    ] = 60.0

    @property
    def message_format(self) -> MessageFormat:
        """The format that the topic's messages have."""
        return FORMATS[self.format]
