"""Reads a range of a topic again: the raw records between two sets of positions. Knows no format."""

import time
from collections.abc import Iterator, Mapping

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.errors import BrokerUnavailableError, OffsetOutOfRangeError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.positions import HISTORY, Partition, Position

SILENCE_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.1


def read_range(
    config: KafkaConfig, begin: Mapping[Partition, Position], end: Mapping[Partition, Position]
) -> Iterator[RawRecords]:
    """The records from `begin` up to `end`, in the order of their offsets within a partition.

    A partition that `begin` does not name is read from its first record. Left out are records that the broker has
    deleted, and positions in a history or in a topic that has been re-created since. Raises StreamError where the
    broker stays silent.
    """
    for name in sorted({partition.topic for partition in end if partition != HISTORY}):
        with Admin(config) as admin:
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
            yield from _read(config, bounds)


def scan_offsets_for_time(
    config: KafkaConfig, begins: Mapping[Partition, int], ends: Mapping[Partition, int], time_ms: int
) -> dict[Partition, int]:
    """The offset of each partition's first record at or after the time; its end where there is none.

    Found by reading the records from `begins` on. Admin.offsets_for_time asks the broker instead, and the embedded
    broker answers that by whole batches only.
    """
    found: dict[Partition, int] = {}
    for partition, end in ends.items():
        begin, stop = {partition: Position("", begins[partition])}, {partition: Position("", end)}
        for raw in read_range(config, begin, stop) if begins[partition] < end else ():
            if len(later_N := np.flatnonzero(raw.record_ms_N >= time_ms)):
                found[partition] = int(raw.offset_N[later_N[0]])
                break
    return {partition: found.get(partition, end) for partition, end in ends.items()}


def _read(config: KafkaConfig, bounds: Mapping[Partition, tuple[int, int]]) -> Iterator[RawRecords]:
    """The records of each partition between its first offset and the offset to stop before."""
    offsets = {partition: first for partition, (first, _) in bounds.items()}
    consumer = PartitionConsumer(config, offsets)
    last_heard = time.monotonic()
    try:
        while behind := [partition for partition, offset in offsets.items() if offset < bounds[partition][1]]:
            consumer.pause(set(offsets) - set(behind))
            try:
                raws = consumer.poll(POLL_SECONDS)
            except OffsetOutOfRangeError as error:
                offsets.update({partition: bounds[partition][1] for partition in error.partitions or behind})
                continue
            for raw in raws:
                raw = raw.before(bounds[raw.partition][1]).from_offset(offsets[raw.partition])
                offsets[raw.partition] = max(offsets[raw.partition], raw.end)
                if len(raw):
                    yield raw
                last_heard = time.monotonic()  # the time that the caller takes does not count as silence of the broker
            if time.monotonic() - last_heard > SILENCE_TIMEOUT_SECONDS:
                raise BrokerUnavailableError(
                    f"the broker at {config.bootstrap_servers} sent nothing of {behind[0]} "
                    f"for {SILENCE_TIMEOUT_SECONDS:.0f} s: check that it runs"
                )
    finally:
        consumer.close()
