import socket

from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.check import check_kafka
from springtide.stream.kafka.config import KafkaConfig


def test_each_problem_is_named_with_its_fix(own_broker):
    own_broker.start()
    (wrong,) = check_kafka("localhost", "clicks")
    assert "host:port" in wrong.what
    (unknown,) = check_kafka("no-such-host.invalid:9092", "clicks")
    assert "not known" in unknown.what
    (refused,) = check_kafka("127.0.0.1:1", "clicks")
    assert "nothing listens on 127.0.0.1:1" in refused.what
    (missing,) = check_kafka(own_broker.address, "clicks")
    assert "no topic 'clicks'" in missing.what
    with Admin(KafkaConfig(bootstrap_servers=own_broker.address)) as admin:
        assert "clicks" not in admin.topics()
        assert admin.ensure_topic("clicks").num_partitions == 1
    assert check_kafka(own_broker.address, "clicks") == []
    for problem in (wrong, unknown, refused, missing):
        assert "\n" not in problem.what + problem.fix


def test_a_port_that_does_not_speak_kafka_is_a_problem(tmp_path):

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (problem,) = check_kafka(f"127.0.0.1:{listener.getsockname()[1]}", "clicks")
    assert "does not speak the Kafka protocol" in problem.what
