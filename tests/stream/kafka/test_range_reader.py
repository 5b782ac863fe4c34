"""A stretch of a topic read once more."""

import time
from types import SimpleNamespace

import pytest

from stream.kafka.range_reader import SILENCE_TIMEOUT_SECONDS, read_range
from stream.positions import Partition, Position


def test_a_stretch_is_read_from_each_partition_and_its_reader_may_take_long(bench, monkeypatch: pytest.MonkeyPatch):
    topic = bench.create(2)
    for number in (0, 1):
        bench.produce([bench.click(user) for user in range(10)], partition=number)
    begin = {Partition(bench.name, 0): Position(topic.id, 4)}
    end = {Partition(bench.name, 0): Position(topic.id, 8), Partition(bench.name, 1): Position(topic.id, 3)}
    monotonic, passed = time.monotonic, [0.0]
    monkeypatch.setattr("stream.kafka.range_reader.time", SimpleNamespace(monotonic=lambda: monotonic() + passed[0]))
    found = []
    for raw in read_range(bench.kafka, begin, end):
        found += [(raw.partition.number, offset) for offset in raw.offset_N.tolist()]
        passed[0] += 2 * SILENCE_TIMEOUT_SECONDS  # dead letters are sent meanwhile
    assert sorted(found) == [(0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (1, 1), (1, 2)]
