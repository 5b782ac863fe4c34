import pytest

from springtide.stream.kafka import consumer as consumer_module
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.raw_fetch import FetchObserver, supports_raw_fetch
from springtide.stream.positions import Position
from tests.support.waiting import wait_until


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
    topic = testbed.create()
    testbed.produce([testbed.click(n) for n in range(100)])
    source = testbed.source()
    assert testbed.users(testbed.read(source, 100)) == list(range(100))
    end = {testbed.partition: Position(topic.id, 100)}
    wait_until(lambda: source.complete_until_ms(end), "the records count as complete")
