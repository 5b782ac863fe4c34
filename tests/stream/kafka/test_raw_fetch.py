import pytest

from springtide.stream.kafka import consumer as consumer_module
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.raw_fetch import MAX_WAIT_MS, AdaptiveFetchWait, FetchObserver, supports_raw_fetch
from springtide.stream.positions import Position
from tests.support.waiting import wait_until


def test_full_responses_far_behind_the_end_do_not_lengthen_the_wait():
    wait = AdaptiveFetchWait(5)
    for _ in range(10):
        wait.observe_response(9_000, 1_000_000, is_full=True)
    assert wait.ms == 5


def test_the_wait_doubles_while_responses_fall_behind():
    wait = AdaptiveFetchWait(5)
    granted = []
    for _ in range(9):
        wait.observe_response(100, 150)
        granted.append(wait.ms)
    assert granted == [10, 20, 40, 80, 160, 320, MAX_WAIT_MS, MAX_WAIT_MS, MAX_WAIT_MS]


def test_an_empty_response_before_the_end_lengthens_the_wait():
    wait = AdaptiveFetchWait(0)
    wait.observe_response(0, 1)
    assert wait.ms == 2


def test_records_produced_during_a_response_do_not_lengthen_the_wait():
    wait = AdaptiveFetchWait(5)
    for _ in range(10):
        wait.observe_response(200, 100)
    assert wait.ms == 5


def test_the_wait_decays_after_one_slow_moment():
    wait = AdaptiveFetchWait(5)
    for _ in range(5):
        wait.observe_response(0, 100)
    assert wait.ms == 160
    seconds = 0.0
    while wait.ms > 10:
        seconds += wait.ms / 1000
        wait.observe_response(100, 0)
    assert seconds == pytest.approx(1.5, abs=0.1)


def test_the_wait_leaves_room_for_a_whole_scan():
    wait = AdaptiveFetchWait(5)
    for _ in range(5):
        wait.observe_response(0, 100)
    for n in range(100):
        wait.observe_delay(n % 8)  # looks of 8 ms that end anywhere
        wait.observe_response(100, 0)
    assert wait.ms == 10


def test_one_late_response_among_many_does_not_lengthen_the_wait():
    wait = AdaptiveFetchWait(5)
    for late_ms in (*[1.0] * 8, 300.0, *[1.0] * 7):
        wait.observe_delay(late_ms)
    for _ in range(3):
        wait.observe_response(0, 100)
    for _ in range(100):
        wait.observe_response(100, 0)
    assert wait.ms == 5


def test_kafka_python_has_the_private_names_that_raw_fetch_needs(testbed):
    testbed.create()
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 0})
    assert reader.is_raw
    assert reader.observes_responses
    assert supports_raw_fetch(reader.consumer)
    reader.close()


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_raw_fetch_reads_the_same_as_plain_polls(testbed, raw, compression):
    testbed.create()
    client = kafka.KafkaProducer(
        bootstrap_servers=testbed.broker.address,
        linger_ms=20,
        compression_type=compression,
        allow_auto_create_topics=False,
    )
    for n in range(2000):
        client.send(testbed.name, b"v%d" % n if n % 5 else None, key=b"k%d" % n, partition=0, timestamp_ms=10**12 + n)
    client.close()
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 123}, raw=raw)
    found = []
    while len(found) < 2000 - 123:
        for records in reader.poll(0.5):
            assert records.end >= int(records.offset_N[-1]) + 1
            for n in range(len(records)):
                found.append((int(records.offset_N[n]), records.key(n), records.value(n), int(records.record_ms_N[n])))
    reader.close()
    assert found == [(n, b"k%d" % n, b"v%d" % n if n % 5 else None, 10**12 + n) for n in range(123, 2000)]


def test_without_the_private_names_a_source_still_reads_and_reports_freshness(testbed, monkeypatch):
    monkeypatch.setattr(consumer_module, "supports_raw_fetch", lambda consumer: False)
    monkeypatch.setattr(FetchObserver, "observe_responses", lambda self, consumer: False)
    topic = testbed.fill(range(100))
    source = testbed.source()
    assert testbed.users(testbed.read(source, 100)) == list(range(100))
    end = {testbed.partition: Position(topic.id, 100)}
    wait_until(lambda: source.complete_until_ms(end), "the records count as complete")
