"""Write to and read from topics of a test's broker."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from springtide.stream.columns import Partition
from springtide.stream.kafka.admin import Admin, Topic
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.producer import Producer
from tests.support.waiting import DEADLINE_SECONDS


def create_topic(address: str, topic: str, *, num_partitions: int = 1) -> Topic:
    """Create the topic if it does not exist, and return it."""
    with Admin(KafkaConfig(bootstrap_servers=address), patient=True) as admin:
        return admin.ensure_topic(topic, num_partitions=num_partitions)


def configure_topic(address: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic, such as `retention.ms`."""
    with Admin(KafkaConfig(bootstrap_servers=address), patient=True) as admin:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, dict(settings))
        admin.client.alter_configs([resource])


def produce(address: str, topic: str, values: Iterable[bytes | None], **options: Any) -> None:
    """Append the values to the topic in order; `options` are those of `Producer.send`."""
    create_topic(address, topic)
    with Producer(KafkaConfig(bootstrap_servers=address), patient=True) as producer:
        for value in values:
            producer.send(topic, value, **options)
        producer.flush(DEADLINE_SECONDS)


def read_topic(address: str, topic: str) -> list[Any]:
    """Return every record of the topic's partition 0, with its headers."""
    partition = Partition(topic, 0)
    with Admin(KafkaConfig(bootstrap_servers=address), patient=True) as admin:
        end = admin.end_offsets(admin.require_topic(topic))[partition]
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, fetch_max_wait_ms=5)
    try:
        consumer.assign([kafka.TopicPartition(*partition)])
        consumer.seek(kafka.TopicPartition(*partition), 0)
        records: list[Any] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(records) < end:
            assert time.monotonic() < deadline, f"{len(records)} of {end} records of {topic}"
            for polled in consumer.poll(timeout_ms=500).values():
                records += polled
        return records
    finally:
        consumer.close(autocommit=False)
