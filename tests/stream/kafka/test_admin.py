import socket

from springtide.stream.kafka.admin import Admin, kafka_problem
from springtide.stream.kafka.config import KafkaConfig
from tests.support.waiting import wait_until


def test_end_offsets_count_every_record_of_the_last_batch(testbed):
    topic = testbed.create(2)
    with Admin(testbed.kafka) as admin:
        assert admin.end_offsets(topic) == dict.fromkeys(topic.partitions, 0)
        testbed.produce([b"x"] * 777)
        assert admin.end_offsets(topic) == {topic.partitions[0]: 777, topic.partitions[1]: 0}


def test_waiting_for_a_topic_does_not_create_it(testbed):
    source = testbed.source()
    wait_until(lambda: source.poll(0.05) == [] and "topic" in source.status.reason)
    with Admin(testbed.kafka) as admin:
        assert admin.topic(testbed.name) is None


def test_each_problem_is_named_with_its_fix(own_broker):
    own_broker.start()
    wrong = kafka_problem("localhost", "clicks")
    assert "host:port" in wrong
    unknown = kafka_problem("no-such-host.invalid:9092", "clicks")
    assert "not known" in unknown
    refused = kafka_problem("127.0.0.1:1", "clicks")
    assert "nothing listens on 127.0.0.1:1" in refused
    missing = kafka_problem(own_broker.address, "clicks")
    assert "no topic 'clicks'" in missing
    with Admin(KafkaConfig(bootstrap_servers=own_broker.address)) as admin:
        assert admin.topic("clicks") is None
        assert admin.ensure_topic("clicks").num_partitions == 1
    assert kafka_problem(own_broker.address, "clicks") == ""
    for problem in (wrong, unknown, refused, missing):
        assert "\n" not in problem


def test_a_port_that_does_not_speak_kafka_is_a_problem(tmp_path):

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        problem = kafka_problem(f"127.0.0.1:{listener.getsockname()[1]}", "clicks")
    assert "does not speak the Kafka protocol" in problem
