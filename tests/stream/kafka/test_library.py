"""kafka-python as this process changes it: sockets that are closed, codecs."""

import errno
import gc
import socket
from types import SimpleNamespace

import confluent_kafka
import pytest

from springtide.stream.compression import CODEC_NAMES
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka, prepare_library
from springtide.stream.kafka.producer import Producer
from springtide.stream.kafka.record_batches import CODEC_MASK, RecordBatchParser
from tests.support.waiting import wait_until


def test_a_client_that_is_closed_while_it_connects_leaves_no_socket_open():
    class ConnectingSocket(socket.socket):
        def connect_ex(self, address: object) -> int:
            return errno.EINPROGRESS

    class Wait:
        def __await__(self):
            yield

    prepare_library()
    net = SimpleNamespace(wait_write=lambda sock, timeout_at: Wait())
    with ConnectingSocket() as one:
        connecting = kafka.net.inet.KafkaNetSocket().sock_connect(net, one, ("127.0.0.1", 1))
        connecting.send(None)
        assert one.fileno() >= 0
        connecting.close()  # as kafka-python cancels its tasks
        assert one.fileno() == -1


def test_a_class_of_responses_that_two_threads_have_made_is_found():
    """As when two clients connect at once: both make the class of a version, and one of the two is dropped."""
    registry, responses = kafka.protocol.api_header.ResponseClassRegistry, kafka.protocol.metadata.ApiVersionsResponse
    header = SimpleNamespace(request_api_key=responses.API_KEY, request_api_version=3)
    responses._VERSIONS.pop(3, None)
    first = responses[3]
    del responses._VERSIONS[3]
    assert responses[3] is not first  # registered last
    responses._VERSIONS[3] = first
    gc.collect()
    assert registry.get_response_class(header) is first


CODECS = [None, *CODEC_NAMES.values()]
NUM_RECORDS = 10_000
NOW_MS = 1_700_000_000_000


def produce_with_librdkafka(testbed, codec):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": testbed.broker.address, "compression.type": codec or "none", "linger.ms": 20}
    )
    for n in range(NUM_RECORDS):
        producer.produce(testbed.name, testbed.click(n, ts=NOW_MS + n), partition=0, timestamp=NOW_MS + n)
        if n % 1000 == 999:
            producer.poll(0)
    assert producer.flush(60) == 0


def produce_with_kafka_python(testbed, codec):
    with Producer(testbed.kafka, linger_ms=20, compression=codec) as producer:
        for n in range(NUM_RECORDS):
            producer.send(testbed.name, testbed.click(n, ts=NOW_MS + n), record_ms=NOW_MS + n)
        producer.flush()


PRODUCERS = [produce_with_librdkafka, produce_with_kafka_python]


@pytest.fixture
def codecs_read(monkeypatch):
    """The codecs of the batches that are fetched: the broker stores them as they were sent."""
    found = set()
    classify = RecordBatchParser._classify

    def observe(self, buffer, position, end):
        found.add(buffer[position + 22] & CODEC_MASK)
        return classify(self, buffer, position, end)

    monkeypatch.setattr(RecordBatchParser, "_classify", observe)
    return found


@pytest.mark.parametrize("produce", PRODUCERS)
@pytest.mark.parametrize("codec", CODECS)
def test_samples_are_equal_whatever_the_codec(testbed, produce, codec, codecs_read):
    testbed.create()
    produce(testbed, codec)
    columns = testbed.read(testbed.source(), NUM_RECORDS)
    assert testbed.users(columns) == list(range(NUM_RECORDS))
    assert testbed.offsets(columns) == list(range(NUM_RECORDS))
    assert [int(label) for part in columns for label in part.labels_NL[:, 0]] == [n % 2 for n in range(NUM_RECORDS)]
    # kafka-python sends a batch that compression would make longer as it is
    assert CODECS.index(codec) in codecs_read <= {0, CODECS.index(codec)}


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_we_produce(testbed, codec):
    testbed.create()
    produce_with_kafka_python(testbed, codec)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": testbed.broker.address, "group.id": testbed.name})
    consumer.assign([confluent_kafka.TopicPartition(testbed.name, 0, 0)])
    found = []

    def read():
        found.extend(message.value() for message in consumer.consume(NUM_RECORDS, 0.1))
        return len(found) >= NUM_RECORDS

    wait_until(read, "librdkafka reads all records")
    consumer.close()
    assert found == [testbed.click(n, ts=NOW_MS + n) for n in range(NUM_RECORDS)]


def test_a_poll_returns_no_more_than_its_limit_and_a_batch(testbed):
    testbed.create()
    value = bytes(1 << 20)
    with Producer(testbed.kafka, linger_ms=0, compression="zstd") as producer:
        for _ in range(40):
            producer.send(testbed.name, value)
            producer.flush()
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 0})
    polls = []

    def read():
        polls.append(sum(len(raw.buffer) for raw in reader.poll(0.1)))
        return sum(polls) >= 40 << 20

    wait_until(read, "all records are read")
    reader.close()
    assert max(polls) <= testbed.kafka.max_fetch_bytes + (4 << 20)


def test_kafka_pythons_own_clients_have_every_codec():
    assert all(getattr(kafka.codec, f"has_{name}")() for name in CODEC_NAMES.values())
