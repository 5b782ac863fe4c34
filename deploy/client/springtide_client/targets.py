"""Targets of a record, beside its features: labels, weight and event time; what a net's output says of a label.

A label that is a value, such as a dwell time, may be learned through a link: as its logarithm.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide_client.encode import DECIMAL, parse_number
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema

# an earlier time, 1980, is most likely in seconds or days instead of milliseconds; 0 means "unknown, long ago"
EARLIEST_MS = 315_532_800_000
MAX_OUTPUT = 80.0  # exp of more is no float32


class SampleTargets(NamedTuple):
    """The targets of one sample."""

    labels: list[float]  # 0..1, or any number where the label is a value; NaN = masked
    weight: float
    event_ms: int


def parse_targets(
    schema: Schema,
    record: Mapping[str, Any],
    *,
    record_ms: int,
    now_ms: int,
    max_future_seconds: float,
    has_labels: bool = True,
) -> SampleTargets:
    """Return the labels, weight and event time of a record; EncodeError if it cannot be trained on.

    `record_ms` is the timestamp of the Kafka record, 0 if it has none. Without `has_labels` there are none in it.
    """
    names = schema.labels if has_labels else ()
    labels = [_label(name, record.get(name), schema.links.get(name)) for name in names]
    if has_labels and all(math.isnan(label) for label in labels):
        raise EncodeError("missing_label", f"no value for {' or '.join(schema.labels)}", field=schema.labels[0])
    weight = 1.0
    if schema.weight is not None and (value := record.get(schema.weight)) is not None:
        try:
            weight = parse_number(value)
        except EncodeError as error:
            raise error.in_field(schema.weight) from None
        if weight < 0:
            raise EncodeError(
                "wrong_type", f"{schema.weight}: a weight is at least 0, not {weight}", field=schema.weight
            )
    # judged by the record's timestamp, if it has one, so that reading the record again later gives the same result
    latest_ms = (min(record_ms, now_ms) if record_ms > 0 else now_ms) + int(max_future_seconds * 1000)
    if schema.timestamp is None:
        event_ms, latest_ms = max(record_ms, 0), now_ms + int(max_future_seconds * 1000)
    else:
        event_ms = parse_event_ms(schema.timestamp, record.get(schema.timestamp))
    if event_ms > latest_ms:
        raise EncodeError("bad_timestamp", f"{event_ms} is later than {latest_ms}", field=schema.timestamp)
    return SampleTargets(labels, weight, event_ms)


def _label(name: str, value: Any, link: str | None) -> float:
    if value is None:
        return math.nan
    try:
        label = parse_number(value)
    except EncodeError as error:
        raise error.in_field(name) from None
    if link == "log1p" and label < 0:
        raise EncodeError("label_range", f"{name}: a label with the loss msle is at least 0, not {label}", field=name)
    if link is None and not 0 <= label <= 1:
        raise EncodeError("label_range", f"{name}: a label is between 0 and 1, not {label}", field=name)
    return label


def parse_event_ms(name: str, value: Any) -> int:
    """Return the event time of a record whose field `name` has this value; EncodeError `bad_timestamp`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and len(value) <= 40 and DECIMAL.fullmatch(value):
        value = int(value) if value.lstrip("+-").isdigit() else float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise EncodeError(
            "bad_timestamp", f"{name}: {str(value)[:40]!r} is not a valid time in milliseconds", field=name
        )
    if value != 0 and value < EARLIEST_MS:
        raise EncodeError("bad_timestamp", f"{name}: {value} is before 1980: give milliseconds", field=name)
    return value


def value_of(link: str, outputs_N: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the values that outputs stand for, by one of springtide_client.schema.LINKS."""
    if link == "log1p":
        values_N: npt.NDArray[np.float64] = np.expm1(np.clip(outputs_N, 0.0, MAX_OUTPUT))
        return values_N
    return outputs_N


def output_of(link: str, values_N: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Invert `value_of`."""
    return np.log1p(values_N) if link == "log1p" else values_N
