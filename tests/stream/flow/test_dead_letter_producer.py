import pytest

from stream.columns import DeadLetter
from stream.errors import ProduceError, StreamError
from stream.flow.dead_letter_producer import LETTER_BYTES, DeadLetterProducer
from stream.kafka.admin import Admin
from stream.kafka.consumer import PartitionConsumer
from stream.kafka.library import kafka
from stream.kafka.producer import Producer


def letters(bench, number, reason="bad_json"):
    return [DeadLetter(bench.partition, n, reason, "line 1", b"k", b"{%d" % n, 1000 + n) for n in range(number)]


def read_back(bench, topic, number):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bench.broker.address, allow_auto_create_topics=False, enable_auto_commit=False
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found = []
    bench.until(lambda: found.extend(consumer.poll(100).get(partition, [])) or len(found) >= number)
    consumer.close(autocommit=False)
    return found


def test_letters_arrive_with_their_bytes_and_what_is_wrong(bench):
    dead = DeadLetterProducer(lambda: bench.kafka, bench.name + ".dead")
    dead.send([*letters(bench, 3), DeadLetter(bench.partition, 3, "empty", "", None, None, 5)])
    assert dead.unacknowledged_bytes == 4 * LETTER_BYTES + 9
    dead.flush()
    assert dead.unacknowledged_bytes == 0
    dead.send(letters(bench, 1, "too_large"))
    dead.flush()
    dead.close()
    assert dead.counts == {"bad_json": 3, "empty": 1, "too_large": 1}
    found = read_back(bench, bench.name + ".dead", 5)
    assert [record.value for record in found] == [b"{0", b"{1", b"{2", None, b"{0"]
    headers = dict(found[1].headers)
    assert headers == {
        "reason": b"bad_json",
        "detail": b"line 1",
        "topic": bench.name.encode(),
        "partition": b"0",
        "offset": b"1",
        "record_ms": b"1001",
    }
    with Admin(bench.kafka) as admin:
        assert admin.topic(bench.name + ".dead").num_partitions == 1


def test_without_letters_no_topic_is_made(bench):
    dead = DeadLetterProducer(lambda: bench.kafka, bench.name + ".dead", counts={"bad_json": 2})
    dead.send([])
    dead.flush()
    assert dead.counts == {"bad_json": 2}
    with Admin(bench.kafka) as admin:
        assert admin.topic(bench.name + ".dead") is None


def test_letters_wait_for_a_broker_that_is_away(bench, own_broker):
    bench.broker = own_broker
    own_broker.start()
    dead = DeadLetterProducer(lambda: bench.kafka, "gone.dead")
    dead.send(letters(bench, 2))
    dead.flush()
    own_broker.stop()
    dead.send(letters(bench, 4))
    with pytest.raises(StreamError):
        dead.flush(0.3)
    own_broker.start()
    dead.flush()
    dead.close()
    assert dead.counts["bad_json"] == 6
    assert len(read_back(bench, "gone.dead", 4)) == 4


def test_a_producer_keeps_order_and_sets_the_record_time(bench):
    bench.create()
    with Producer(bench.kafka) as producer:
        for n in range(5000):
            producer.send(bench.name, b"%d" % n, record_ms=10**12 + n)
        producer.flush()
        assert producer.num_sent == 5000
    reader = PartitionConsumer(bench.kafka, {bench.partition: 0})
    found = []
    while len(found) < 5000:
        for raw in reader.poll(0.5):
            found += [(raw.value(n), int(raw.record_ms_N[n])) for n in range(len(raw))]
    reader.close()
    assert found == [(b"%d" % n, 10**12 + n) for n in range(5000)]


def test_a_producer_tells_what_was_not_taken(bench, own_broker):
    own_broker.start()
    bench.broker = own_broker
    bench.create()
    producer = Producer(bench.kafka, delivery_seconds=1.0)
    producer.send(bench.name, b"x")
    producer.flush()
    own_broker.stop()
    producer.send(bench.name, b"y")
    with pytest.raises(ProduceError, match="not taken") as told:
        producer.flush(10)
    assert "\n" not in str(told.value)
    producer.close(0.1)


def test_a_message_beyond_the_limit_is_told(bench):
    bench.create()
    with Producer(bench.kafka) as producer, pytest.raises(ProduceError, match="64 MiB"):
        producer.send(bench.name, bytes(65 << 20))


def test_the_true_end_is_told_where_the_last_batch_holds_many_records(bench):
    topic = bench.create(2)
    with Admin(bench.kafka) as admin:
        assert admin.end_offsets(topic) == dict.fromkeys(topic.partitions, 0)
        bench.produce([b"x"] * 777)
        assert admin.end_offsets(topic) == {topic.partitions[0]: 777, topic.partitions[1]: 0}


def test_how_much_waits_is_known_without_looking_at_every_letter(bench):
    class Value(bytes):
        looks = 0

        def __len__(self) -> int:
            Value.looks += 1
            return super().__len__()

    dead = DeadLetterProducer(lambda: bench.kafka, bench.name + ".dead")
    for number in range(200):
        dead.send([DeadLetter(bench.partition, number, "gate", "", b"k", Value(b"1234567"), 5)])
        assert dead.unacknowledged_bytes == (number + 1) * (LETTER_BYTES + 8)
    assert Value.looks <= 400
