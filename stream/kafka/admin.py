"""Topics on a broker: list, look up, create, delete; where partitions begin and end; offsets reported to a group.

Every failure is a StreamError of one line. Creates no topic unless asked to, and then with the given partition count.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from springtide.stream.errors import AccessError, BrokerUnavailableError, StreamError, TopicNotFoundError
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.connection import connect, unreachable_reason
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka, prepare_library, translate_error
from springtide.stream.positions import Partition

REQUEST_SECONDS = 5.0
UNKNOWN_TOPIC = 3


@dataclass(frozen=True)
class Topic:
    """A topic as the broker describes it."""

    name: str
    id: str  # another one after the topic was deleted and re-created; empty where the broker assigns no ids
    num_partitions: int

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(Partition(self.name, number) for number in range(self.num_partitions))


class Admin:
    """A connection for questions and commands about topics. Every method raises StreamError."""

    def __init__(self, config: KafkaConfig, *, patient: bool = False) -> None:
        """`patient`: wait longer for a busy broker, where nothing else waits for the caller."""
        prepare_library()
        self.config = config
        with self._translated_errors():
            self.client: Any = connect(
                kafka.admin.KafkaAdminClient,
                config,
                patient=patient,
                request_timeout_ms=int(REQUEST_SECONDS * 1000),
            )

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, or None. Never creates it."""
        with self._translated_errors():
            description = self.client.describe_topics([name])[0]
        if description["error_code"] == UNKNOWN_TOPIC:
            return None
        if description["error_code"] != 0 or not description["partitions"]:
            raise TopicNotFoundError(f"topic {name!r} is not ready (Kafka error {description['error_code']})")
        topic_id = description.get("topic_id")
        has_id = topic_id is not None and uuid.UUID(str(topic_id)).int != 0
        return Topic(name, str(topic_id) if has_id else "", len(description["partitions"]))

    def require_topic(self, name: str) -> Topic:
        """The topic of this name. Raises TopicNotFoundError where there is none."""
        topic = self.topic(name)
        if topic is None:
            raise TopicNotFoundError(self.without_topic(name))
        return topic

    def without_topic(self, name: str) -> str:
        """Say that there is no topic of this name, and what to do about it."""
        return (
            f"there is no topic {name!r} at {self.config.bootstrap_servers}: "
            f"create it, send something with `springtide replay`, or correct [source] topic"
        )

    def ensure_topic(self, name: str, *, num_partitions: int = 1) -> Topic:
        """The topic of this name, created with `num_partitions` if it is missing; an existing one keeps its own."""
        if (topic := self.topic(name)) is not None:
            return topic
        try:
            self._create(name, num_partitions, -1)
        except kafka.errors.TopicAlreadyExistsError:
            pass
        except (kafka.errors.IncompatibleBrokerVersion, kafka.errors.InvalidReplicationFactorError):
            with self._translated_errors():  # brokers before 2.4 have no default replication factor
                self._create(name, num_partitions, 1)
        except (kafka.errors.KafkaError, ValueError) as error:
            raise translate_error(error, self.config) from None
        return self.wait_for_topic(name)

    def wait_for_topic(self, name: str, seconds: float = 10.0) -> Topic:
        """Wait until the broker has finished creating the topic. Raises TopicNotFoundError after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.require_topic(name)
            except TopicNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def delete_topic(self, name: str) -> None:
        """Delete the topic, if there is one."""
        with self._translated_errors():
            try:
                self.client.delete_topics([name])
            except kafka.errors.UnknownTopicOrPartitionError:
                return

    def beginning_offsets(self, topic: Topic) -> dict[Partition, int]:
        """The first offset that each partition still holds."""
        spec = kafka.admin.OffsetSpec.EARLIEST
        with self._translated_errors():
            found = self.client.list_partition_offsets({kafka.TopicPartition(*p): spec for p in topic.partitions})
        return {Partition(*topic_partition): listed.offset for topic_partition, listed in found.items()}

    def listed_ends(self, topic: Topic) -> dict[Partition, int]:
        """Where each partition ends at least; the embedded broker counts of the last batch its first record alone."""
        specs = {kafka.TopicPartition(*p): kafka.admin.OffsetSpec.LATEST for p in topic.partitions}
        with self._translated_errors():
            found = self.client.list_partition_offsets(
                specs, isolation_level=kafka.consumer.fetcher.IsolationLevel.READ_COMMITTED
            )
        return {Partition(*topic_partition): listed.offset for topic_partition, listed in found.items()}

    def end_offsets(self, topic: Topic) -> dict[Partition, int]:
        """The offset after each partition's last record, taken from fetches (see raw_fetch.FetchObserver)."""
        consumer = PartitionConsumer(self.config, self.beginning_offsets(topic))
        try:
            deadline = time.monotonic() + REQUEST_SECONDS
            # the responses also carry the first records of each partition; they are ignored
            while consumer.ends.keys() < set(topic.partitions):
                consumer.poll(0.05)
                if time.monotonic() > deadline:
                    raise BrokerUnavailableError(
                        f"the broker at {self.config.bootstrap_servers} did not return the end of {topic.name!r} "
                        f"within {REQUEST_SECONDS:.0f} s: check that it runs"
                    )
            return {partition: end.offset for partition, end in consumer.ends.items()}
        finally:
            consumer.close()

    def offsets_for_time(self, topic: Topic, time_ms: int, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """The offset of each partition's first record at or after the time, as the broker reports it; else its end."""
        with self._translated_errors():
            found = self.client.list_partition_offsets({kafka.TopicPartition(*p): time_ms for p in topic.partitions})
        by_partition = {Partition(*topic_partition): listed for topic_partition, listed in found.items()}
        return {
            partition: by_partition[partition].offset
            if partition in by_partition and by_partition[partition].timestamp >= 0
            else end
            for partition, end in ends.items()
        }

    def report_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets to a consumer group without joining it, so that monitoring tools see the lag."""
        committed = {kafka.TopicPartition(*p): kafka.structs.OffsetAndMetadata(o, "", -1) for p, o in offsets.items()}
        with self._translated_errors():
            self.client.alter_group_offsets(group, committed)

    def topic_settings(self, name: str) -> dict[str, str]:
        """The settings of a topic, such as `retention.ms`, its own and the broker's defaults for it."""
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)
        with self._translated_errors():
            found = self.client.describe_configs([resource], config_filter="all")
        return {key: str(entry["value"]) for key, entry in found.get("topic", {}).get(name, {}).items()}

    def _create(self, name: str, num_partitions: int, replication: int) -> None:
        wanted = {"num_partitions": num_partitions, "replication_factor": replication}
        self.client.create_topics({name: wanted}, wait_for_metadata=False)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise kafka-python's errors as StreamErrors."""
        try:
            yield
        except (kafka.errors.KafkaError, ValueError) as error:
            raise translate_error(error, self.config) from None


def kafka_problem(bootstrap_servers: str, topic: str, *, options: Mapping[str, Any] | None = None) -> str:
    """Return the first problem on the way to the topic (address, connection, protocol, topic), and how to fix it.

    For `springtide check`; "" if there is none.
    """
    try:
        config = KafkaConfig(bootstrap_servers=bootstrap_servers, options=options or {})
    except ValueError as error:
        return f'{error}: write [source] bootstrap_servers = "host:port", several separated by commas'
    if reason := unreachable_reason(bootstrap_servers):
        return f"Kafka: {reason}: start the broker, or correct [source] bootstrap_servers"
    try:
        with Admin(config) as admin:
            return "" if admin.topic(topic) is not None else admin.without_topic(topic)
    except AccessError as error:
        return str(error)
    except BrokerUnavailableError:
        return (
            f"something listens on {bootstrap_servers}, but does not speak the Kafka protocol: "
            "correct the port in [source] bootstrap_servers, or the security settings"
        )
    except StreamError as error:
        return f"{error}: look at the broker's log"
