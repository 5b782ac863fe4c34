"""The reference encoder: one record (a mapping of raw values) to ids, lists and numbers. Plain Python, every case.

The trainer's fast columnar decoder is tested to equal this; servers and HotModel encode instances with it.
Knows no bytes: JSON is decoded before, so that every front door shares one meaning of a value.
"""

# N instances, F dense features
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from springtide_client.errors import EncodeError
from springtide_client.features import Features, Ragged
from springtide_client.keys import encode_id
from springtide_client.schema import Schema

# a number from here on rounds to infinity in float32: its largest value and half a step more
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
# a time before 1980 is no time in milliseconds (seconds or days, most likely); 0 is taken as "unknown, long ago"
EARLIEST_MS = 315_532_800_000

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE_TEXT = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


# by field and identity of a value: its id, or the ids of its list
EncodedValues = dict[tuple[str, int], Any]


class EncodedInstance(NamedTuple):
    """One instance in the schema's order; `texts`: (feature number, id, text) of each hashed id."""

    categorical: list[int]
    lists: list[list[int]]
    dense: list[float]
    id_strings: list[tuple[int, int, str]]


class SampleTargets(NamedTuple):
    """What a record says beside its features."""

    labels: list[float]  # 0..1; NaN = masked
    weight: float
    event_ms: int


def parse_number(value: Any) -> float:
    """A number, a boolean or a text in decimal notation as a float that float32 can hold.

    Raises EncodeError `not_finite` for NaN, infinities and what overflows float32, `wrong_type` for anything else.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        if _NOT_FINITE_TEXT.fullmatch(value):
            raise EncodeError("not_finite", f"{value!r} is not finite")
        if not _DECIMAL.fullmatch(value):
            raise EncodeError("wrong_type", f"the text {value[:40]!r} is not a number")
        value = float(value)
    if not isinstance(value, (int, float)):  # bool is an int
        raise EncodeError("wrong_type", f"{type(value).__name__} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) < FLOAT32_OVERFLOW:
        raise EncodeError("not_finite", f"{number!r} is not a finite 32-bit number")
    return number


class InstanceEncoder:
    """Encodes instances of one schema, one at a time."""

    def __init__(self, schema: Schema) -> None:
        self._categorical = [(name, schema.number(name)) for name in schema.categorical]
        first = [(name, schema.number(name), slice(schema.length_limit(name))) for name in schema.multi_value]
        last = [(name, schema.number(name), slice(-schema.length_limit(name), None)) for name in schema.sequence]
        self._lists = [*first, *last]
        self._dense = schema.dense

    def encode(self, instance: Mapping[str, Any], seen: "EncodedValues | None" = None) -> EncodedInstance:
        """The instance's features; EncodeError names the field that cannot be encoded.

        `seen`: what instances before it had, where they are alive and share values; a value's texts are told once.
        """
        if not isinstance(instance, Mapping):
            raise EncodeError("wrong_type", f"an instance is an object of fields, not {type(instance).__name__}")
        encoded = EncodedInstance([], [], [], [])
        name = ""
        try:
            for name, number in self._categorical:
                value = instance.get(name)
                if seen is None or not isinstance(value, str):
                    encoded.categorical.append(_id(value, number, encoded.id_strings))
                    continue
                if (place := (name, id(value))) not in seen:
                    seen[place] = _id(value, number, encoded.id_strings)
                encoded.categorical.append(seen[place])
            for name, number, kept in self._lists:
                value = instance.get(name)
                if seen is None or not isinstance(value, list):
                    encoded.lists.append(_ids(value, number, kept, encoded.id_strings))
                    continue
                if (place := (name, id(value))) not in seen:
                    seen[place] = _ids(value, number, kept, encoded.id_strings)
                encoded.lists.append(seen[place])
            for name in self._dense:
                value = instance.get(name)
                encoded.dense.append(math.nan if value is None else parse_number(value))
        except EncodeError as error:
            raise _in_field(error, name) from None
        return encoded

    def pack(self, encoded_N: Sequence[EncodedInstance]) -> Features:
        """Encoded instances as the arrays that models take."""
        num_instances = len(encoded_N)
        lists = []
        for column in range(len(self._lists)):
            offsets = np.zeros(num_instances + 1, np.int64)
            np.cumsum([len(encoded.lists[column]) for encoded in encoded_N], out=offsets[1:])
            lists.append(Ragged(np.array([i for e in encoded_N for i in e.lists[column]], np.int64), offsets))
        categorical = np.array([encoded.categorical for encoded in encoded_N], np.int64)
        dense = np.array([encoded.dense for encoded in encoded_N], np.float32)
        return Features(
            categorical_NC=categorical.reshape(num_instances, len(self._categorical)),
            lists=tuple(lists),
            dense_NF=dense.reshape(num_instances, len(self._dense)),
        )


def encode_instances(schema: Schema, instances: Sequence[Mapping[str, Any]], *, share_values: bool = False) -> Features:
    """The features of some instances, labels and unknown fields ignored.

    A categorical that is missing or null is `MISSING_ID`; a list that is missing or null is empty, its null elements
    are skipped, and it is cut to its limit (multi_value keeps the first, sequence the last elements); a number that is
    missing or null is NaN. `share_values`: many hold the very same texts and lists, which are then encoded once.
    Raises EncodeError with reason, field and index.
    """
    encoder = InstanceEncoder(schema)
    seen: EncodedValues | None = {} if share_values else None
    encoded = []
    for index, instance in enumerate(instances):
        try:
            encoded.append(encoder.encode(instance, seen))
        except EncodeError as error:
            error.index = index
            raise
    return encoder.pack(encoded)


def parse_sample(
    schema: Schema, record: Mapping[str, Any], *, record_ms: int, now_ms: int, max_future_seconds: float
) -> SampleTargets:
    """The labels, weight and event time of a record; EncodeError where it cannot be learned from."""
    labels = [_label(name, record.get(name)) for name in schema.labels]
    if all(math.isnan(label) for label in labels):
        raise EncodeError("missing_label", f"no value for {' or '.join(schema.labels)}", field=schema.labels[0])
    weight = 1.0
    if schema.weight is not None and (value := record.get(schema.weight)) is not None:
        try:
            weight = parse_number(value)
        except EncodeError as error:
            raise _in_field(error, schema.weight) from None
        if weight < 0:
            raise EncodeError(
                "wrong_type", f"{schema.weight}: a weight is at least 0, not {weight}", field=schema.weight
            )
    # the record's own timestamp, where it has one, makes the answer the same when the record is read again
    latest_ms = (min(record_ms, now_ms) if record_ms > 0 else now_ms) + int(max_future_seconds * 1000)
    if schema.timestamp is None:
        event_ms, latest_ms = max(record_ms, 0), now_ms + int(max_future_seconds * 1000)
    else:
        event_ms = _event_ms(schema.timestamp, record.get(schema.timestamp))
    if event_ms > latest_ms:
        raise EncodeError("bad_timestamp", f"{event_ms} is in the future of {latest_ms}", field=schema.timestamp)
    return SampleTargets(labels, weight, event_ms)


def _label(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        label = parse_number(value)
    except EncodeError as error:
        raise _in_field(error, name) from None
    if not 0 <= label <= 1:
        raise EncodeError("label_range", f"{name}: a label is between 0 and 1, not {label}", field=name)
    return label


def _event_ms(name: str, value: Any) -> int:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and len(value) <= 40 and _DECIMAL.fullmatch(value):
        value = int(value) if value.lstrip("+-").isdigit() else float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise EncodeError("bad_timestamp", f"{name}: {str(value)[:40]!r} is no time in milliseconds", field=name)
    if value != 0 and value < EARLIEST_MS:
        raise EncodeError("bad_timestamp", f"{name}: {value} is before 1980: milliseconds are wanted", field=name)
    return value


def _id(value: Any, number: int, texts: list[tuple[int, int, str]]) -> int:
    key, text = encode_id(value.item() if isinstance(value, np.generic) else value)
    if text is not None:
        texts.append((number, key, text))
    return key


def _ids(value: Any, number: int, kept: slice, texts: list[tuple[int, int, str]]) -> list[int]:
    if value is None:
        return []
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise EncodeError("wrong_type", f"a list is wanted, not {type(value).__name__}")
    # elements beyond the limit are checked and told too, so that a record is good or bad whatever the limit
    return [_id(element, number, texts) for element in value if element is not None][kept]


def _in_field(error: EncodeError, name: str) -> EncodeError:
    return EncodeError(error.reason, f"{name}: {error}", field=name)
