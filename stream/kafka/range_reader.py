"""A stretch of a topic read once more: the records between two sets of positions, raw. Knows no format."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from stream.errors import BrokerUnavailableError, OffsetOutOfRangeError
from stream.kafka.admin import Admin
from stream.kafka.consumer import KafkaConfig, PartitionConsumer
from stream.kafka.offset_gaps import cut
from stream.positions import Partition, Position
from stream.records import RawRecords

SILENCE_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.1


def read_range(
    kafka: KafkaConfig, begin: Mapping[Partition, Position], end: Mapping[Partition, Position]
) -> Iterator[RawRecords]:
    """The records from `begin` (where it says nothing: from the first) up to `end`, as far as the topic holds them.

    What is retired, or of a topic that is no more, is left out. StreamError where the broker does not answer.
    """
    for name in sorted({partition.topic for partition in end}):
        with Admin(kafka) as admin:
            topic = admin.topic(name)
            beginnings = {} if topic is None else admin.beginning_offsets(topic)
        if topic is None:
            continue
        bounds: dict[Partition, tuple[int, int]] = {}
        for partition in topic.partitions:
            stop, start = end.get(partition), begin.get(partition)
            if stop is None or stop.topic_id not in ("", topic.id):
                continue
            is_same = start is not None and start.topic_id == stop.topic_id
            first = max(beginnings[partition], start.offset if is_same and start is not None else 0)
            if first < stop.offset:
                bounds[partition] = first, stop.offset
        if bounds:
            yield from _read(kafka, bounds)


def _read(kafka: KafkaConfig, bounds: Mapping[Partition, tuple[int, int]]) -> Iterator[RawRecords]:
    places = {partition: first for partition, (first, _) in bounds.items()}
    reader = PartitionConsumer(kafka, places)
    heard = time.monotonic()
    try:
        while behind := [partition for partition, place in places.items() if place < bounds[partition][1]]:
            reader.pause(set(places) - set(behind))
            try:
                raws = reader.poll(POLL_SECONDS)
            except OffsetOutOfRangeError as error:
                places.update({partition: bounds[partition][1] for partition in error.partitions or behind})
                continue
            for raw in raws:
                raw = _from(cut(raw, bounds[raw.partition][1]), places[raw.partition])
                places[raw.partition] = max(places[raw.partition], raw.end)
                if len(raw):
                    yield raw
                heard = time.monotonic()  # what the reader of these took its time for is no silence of the broker
            if time.monotonic() - heard > SILENCE_TIMEOUT_SECONDS:
                raise BrokerUnavailableError(f"the broker at {kafka.bootstrap_servers} sends nothing of {behind[0]}")
    finally:
        reader.close()


def _from(raw: RawRecords, start: int) -> RawRecords:
    """The records at and after an offset."""
    n = int(np.searchsorted(raw.offset_N, start))
    if n == 0:
        return raw
    return replace(
        raw,
        value_start_N=raw.value_start_N[n:],
        value_length_N=raw.value_length_N[n:],
        key_start_N=raw.key_start_N[n:],
        key_length_N=raw.key_length_N[n:],
        record_ms_N=raw.record_ms_N[n:],
        offset_N=raw.offset_N[n:],
    )
