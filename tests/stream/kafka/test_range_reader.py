import time
from types import SimpleNamespace

import pytest

from springtide.stream.kafka.range_reader import SILENCE_TIMEOUT_SECONDS, read_range
from springtide.stream.positions import Partition, Position


def test_a_range_of_each_partition_is_read_and_the_caller_may_take_long(testbed, monkeypatch: pytest.MonkeyPatch):
    topic = testbed.create(2)
    for number in (0, 1):
        testbed.produce([testbed.click(user) for user in range(10)], partition=number)
    begin = {Partition(testbed.name, 0): Position(topic.id, 4)}
    end = {Partition(testbed.name, 0): Position(topic.id, 8), Partition(testbed.name, 1): Position(topic.id, 3)}
    monotonic, passed = time.monotonic, [0.0]
    monkeypatch.setattr(
        "springtide.stream.kafka.range_reader.time", SimpleNamespace(monotonic=lambda: monotonic() + passed[0])
    )
    found = []
    for raw in read_range(testbed.kafka, begin, end):
        found += [(raw.partition.number, offset) for offset in raw.offset_N.tolist()]
        passed[0] += 2 * SILENCE_TIMEOUT_SECONDS  # dead letters are sent meanwhile
    assert sorted(found) == [(0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (1, 1), (1, 2)]
