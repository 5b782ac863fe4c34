"""Fill the topic that a configuration names."""

from collections.abc import Iterable

from springtide.stream.config import SourceConfig
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer


def fill(config: SourceConfig, values: Iterable[bytes]) -> None:
    """Create the topic with one partition, and produce these records."""
    connection = config.kafka_config()
    with Admin(connection) as admin:
        admin.ensure_topic(config.topic)
    with Producer(connection) as producer:
        for value in values:
            producer.send(config.topic, value)
        producer.flush()
