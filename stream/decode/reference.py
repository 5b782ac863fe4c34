"""The slow path of decoding, which defines the result: msgspec and the reference encoder, one record at a time."""

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from springtide_client.encode import EncodedInstance, InstanceEncoder
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema
from springtide_client.targets import SampleTargets, parse_targets


class ReferenceDecoder:
    """Decodes one record at a time, in every case."""

    def __init__(self, schema: Schema, *, max_message_bytes: int, max_future_seconds: float) -> None:
        self.schema = schema
        self.max_message_bytes = max_message_bytes
        self.max_future_seconds = max_future_seconds
        self.encoder = InstanceEncoder(schema)

    def decode(self, value: bytes | None, record_ms: int, now_ms: int) -> tuple[SampleTargets, EncodedInstance]:
        """The record's labels, weight and time, and its features. Raises EncodeError with the dead letter's reason."""
        if value is None:
            raise EncodeError("empty", "the record has no value")
        if len(value) > self.max_message_bytes:
            raise EncodeError("too_large", f"{len(value)} bytes are more than max_message_bytes")
        record = load_object(value)
        sample = parse_targets(
            self.schema, record, record_ms=record_ms, now_ms=now_ms, max_future_seconds=self.max_future_seconds
        )
        return sample, self.encoder.encode(record)


def load_object(value: bytes) -> Mapping[str, Any]:
    """Parse a JSON object; of duplicate keys the last counts.

    Raises EncodeError `bad_json`, `not_finite` or `wrong_type`.
    """
    try:
        record = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _has_not_finite(value):
            raise EncodeError("not_finite", "a number is NaN, infinite or too large") from None
        raise EncodeError("bad_json", str(error)) from None
    if not isinstance(record, dict):
        raise EncodeError("wrong_type", f"a record must be a JSON object, not {type(record).__name__}")
    return record


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
