import pytest

from springtide.stream.errors import MessageTooLargeError, ProduceError
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.producer import Producer
from tests.support.broker import apache_only


def test_messages_keep_their_order_and_record_time(testbed):
    testbed.create()
    with Producer(testbed.kafka) as producer:
        for n in range(5000):
            producer.send(testbed.name, b"%d" % n, record_ms=10**12 + n)
        producer.flush()
        assert producer.num_sent == 5000
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 0})
    found = []
    while len(found) < 5000:
        for raw in reader.poll(0.5):
            found += [(raw.value(n), int(raw.record_ms_N[n])) for n in range(len(raw))]
    reader.close()
    assert found == [(b"%d" % n, 10**12 + n) for n in range(5000)]


def test_a_message_that_the_broker_does_not_take_raises(testbed, own_broker):
    own_broker.start()
    testbed.broker = own_broker
    testbed.create()
    producer = Producer(testbed.kafka, delivery_seconds=5.0)
    producer.send(testbed.name, b"x")
    producer.flush()
    own_broker.stop()
    producer.send(testbed.name, b"y")
    with pytest.raises(ProduceError, match="did not take a message") as raised:
        producer.flush(300)
    assert "\n" not in str(raised.value)
    producer.close(0.1)


def test_a_message_over_the_size_limit_raises(testbed):
    testbed.create()
    with Producer(testbed.kafka) as producer, pytest.raises(ProduceError, match="64 MiB"):
        producer.send(testbed.name, bytes(65 << 20))


@apache_only
def test_a_message_over_the_topics_limit_says_whose_limit_it_is(testbed):
    testbed.create()
    testbed.configure({"max.message.bytes": "50000"})
    with Producer(testbed.kafka) as producer:
        producer.send(testbed.name, bytes(60_000))
        with pytest.raises(
            MessageTooLargeError, match=r"limit of 50,000 bytes of topic .* raise max.message.bytes"
        ) as raised:
            producer.flush()
        assert raised.value.limit_bytes == 50_000
