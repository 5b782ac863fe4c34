import pytest

from springtide.stream.columns import DeadLetter
from springtide.stream.dead_letter_producer import LETTER_BYTES, DeadLetterProducer
from springtide.stream.errors import StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.library import kafka
from tests.support.waiting import wait_until


def letters(testbed, number, reason="bad_json"):
    return [DeadLetter(testbed.partition, n, reason, "line 1", b"k", b"{%d" % n, 1000 + n) for n in range(number)]


def read_back(testbed, topic, number):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=testbed.broker.address, allow_auto_create_topics=False, enable_auto_commit=False
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found = []
    wait_until(lambda: found.extend(consumer.poll(100).get(partition, [])) or len(found) >= number)
    consumer.close(autocommit=False)
    return found


def test_dead_letters_carry_their_bytes_and_the_reason(testbed):
    dead = DeadLetterProducer(lambda: testbed.kafka, testbed.name + ".dead")
    dead.send([*letters(testbed, 3), DeadLetter(testbed.partition, 3, "empty", "", None, None, 5)])
    assert dead.unacknowledged_bytes == 4 * LETTER_BYTES + 9
    dead.flush()
    assert dead.unacknowledged_bytes == 0
    dead.send(letters(testbed, 1, "too_large"))
    dead.flush()
    dead.close()
    found = read_back(testbed, testbed.name + ".dead", 5)
    assert [record.value for record in found] == [b"{0", b"{1", b"{2", None, b"{0"]
    headers = dict(found[1].headers)
    assert headers == {
        "reason": b"bad_json",
        "detail": b"line 1",
        "topic": testbed.name.encode(),
        "partition": b"0",
        "offset": b"1",
        "record_ms": b"1001",
    }
    with Admin(testbed.kafka) as admin:
        assert admin.topic(testbed.name + ".dead").num_partitions == 1


def test_no_topic_is_created_without_dead_letters(testbed):
    dead = DeadLetterProducer(lambda: testbed.kafka, testbed.name + ".dead")
    dead.send([])
    dead.flush()
    with Admin(testbed.kafka) as admin:
        assert admin.topic(testbed.name + ".dead") is None


def test_dead_letters_wait_for_an_unavailable_broker(testbed, own_broker):
    testbed.broker = own_broker
    own_broker.start()
    dead = DeadLetterProducer(lambda: testbed.kafka, "gone.dead")
    dead.send(letters(testbed, 2))
    dead.flush()
    own_broker.stop()
    dead.send(letters(testbed, 4))
    with pytest.raises(StreamError):
        dead.flush(0.3)
    own_broker.start()
    dead.flush()
    dead.close()
    assert len(read_back(testbed, "gone.dead", 4)) == 4


def test_unacknowledged_bytes_are_counted_incrementally(testbed):
    class Value(bytes):
        looks = 0

        def __len__(self) -> int:
            Value.looks += 1
            return super().__len__()

    dead = DeadLetterProducer(lambda: testbed.kafka, testbed.name + ".dead")
    for number in range(200):
        dead.send([DeadLetter(testbed.partition, number, "gate", "", b"k", Value(b"1234567"), 5)])
        assert dead.unacknowledged_bytes == (number + 1) * (LETTER_BYTES + 8)
    assert Value.looks <= 400
