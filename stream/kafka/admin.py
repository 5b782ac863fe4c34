"""Topics seen from outside: what is there, made, deleted, how far it reaches; and what `springtide check` tells.

Every failure is a StreamError of one line. Creates nothing unless asked to, and then with the partitions asked for.
"""

import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stream.errors import BrokerUnavailableError, StreamError, TopicNotFoundError
from stream.kafka.consumer import CONNECT_SECONDS, KafkaConfig, PartitionConsumer, parse_addresses, translate_error
from stream.kafka.library import kafka, prepare_library
from stream.positions import Partition

REQUEST_SECONDS = 5.0
UNKNOWN_TOPIC = 3


@dataclass(frozen=True)
class Topic:
    """A topic as the broker knows it."""

    name: str
    id: str  # changes when a topic of the same name is made anew; empty where the broker has no such ids
    num_partitions: int

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(Partition(self.name, number) for number in range(self.num_partitions))


@dataclass(frozen=True)
class Problem:
    """What is wrong, and how to mend it: a line each."""

    what: str
    fix: str


class Admin:
    """One connection for questions and orders about topics."""

    def __init__(self, config: KafkaConfig) -> None:
        prepare_library()
        self.config = config
        with self.translated_errors():
            self.client: Any = kafka.admin.KafkaAdminClient(
                request_timeout_ms=int(REQUEST_SECONDS * 1000), **config.client_options()
            )

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """kafka-python's errors as ours."""
        try:
            yield
        except (kafka.errors.KafkaError, ValueError) as error:
            raise translate_error(error, self.config) from None

    def topics(self) -> list[str]:
        """The names of all topics."""
        with self.translated_errors():
            return sorted(self.client.list_topics())

    def topic(self, name: str) -> Topic | None:
        """The topic, or None where there is none of that name. Never creates it."""
        with self.translated_errors():
            told = self.client.describe_topics([name])[0]
        if told["error_code"] == UNKNOWN_TOPIC:
            return None
        if told["error_code"] != 0 or not told["partitions"]:
            raise TopicNotFoundError(f"topic {name!r} is not ready (Kafka error {told['error_code']})")
        topic_id = told.get("topic_id")
        known = topic_id is not None and uuid.UUID(str(topic_id)).int != 0
        return Topic(name, str(topic_id) if known else "", len(told["partitions"]))

    def require_topic(self, name: str) -> Topic:
        """The topic; TopicNotFoundError where there is none."""
        topic = self.topic(name)
        if topic is None:
            raise TopicNotFoundError(
                f"there is no topic {name!r} at {self.config.bootstrap_servers}: "
                f"create it, send something with `springtide replay`, or correct [source] topic"
            )
        return topic

    def ensure_topic(self, name: str, *, num_partitions: int = 1) -> Topic:
        """The topic, made with so many partitions if it is missing; an existing one keeps its own."""
        if (topic := self.topic(name)) is not None:
            return topic
        try:
            self._create(name, num_partitions, -1)
        except kafka.errors.TopicAlreadyExistsError:
            pass
        except (kafka.errors.IncompatibleBrokerVersion, kafka.errors.InvalidReplicationFactorError):
            with self.translated_errors():  # brokers before 2.4 know no default
                self._create(name, num_partitions, 1)
        except (kafka.errors.KafkaError, ValueError) as error:
            raise translate_error(error, self.config) from None
        return self.wait_for_topic(name)

    def _create(self, name: str, num_partitions: int, replication: int) -> None:
        wanted = {"num_partitions": num_partitions, "replication_factor": replication}
        self.client.create_topics({name: wanted}, wait_for_metadata=False)

    def wait_for_topic(self, name: str, seconds: float = 10.0) -> Topic:
        """The topic, once the broker has finished making it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.require_topic(name)
            except TopicNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def delete_topic(self, name: str) -> None:
        """Delete the topic; nothing where there is none."""
        with self.translated_errors():
            try:
                self.client.delete_topics([name])
            except kafka.errors.UnknownTopicOrPartitionError:
                return

    def beginning_offsets(self, topic: Topic) -> dict[Partition, int]:
        """The first offset that each partition still holds."""
        spec = kafka.admin.OffsetSpec.EARLIEST
        with self.translated_errors():
            found = self.client.list_partition_offsets({kafka.TopicPartition(*p): spec for p in topic.partitions})
        return {Partition(*topic_partition): told.offset for topic_partition, told in found.items()}

    def end_offsets(self, topic: Topic) -> dict[Partition, int]:
        """The offset after each partition's last record, as fetches tell it (see Reader)."""
        reader = PartitionConsumer(self.config, self.beginning_offsets(topic))
        try:
            deadline = time.monotonic() + REQUEST_SECONDS
            # answers about the end come with the records at the beginning: they are not looked at
            while reader.ends.keys() < set(topic.partitions):
                reader.poll(0.05)
                if time.monotonic() > deadline:
                    raise BrokerUnavailableError(
                        f"the broker at {self.config.bootstrap_servers} does not say where it ends"
                    )
            return {partition: end for partition, (end, _) in reader.ends.items()}
        finally:
            reader.close()

    def offsets_for_time(self, topic: Topic, time_ms: int, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """The first offset of each partition whose record is not older, as the broker says; else where it ends."""
        with self.translated_errors():
            found = self.client.list_partition_offsets({kafka.TopicPartition(*p): time_ms for p in topic.partitions})
        told = {Partition(*topic_partition): answer for topic_partition, answer in found.items()}
        return {p: told[p].offset if p in told and told[p].timestamp >= 0 else end for p, end in ends.items()}

    def report_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit positions to a consumer group without joining it, so that monitoring tools see the lag."""
        told = {kafka.TopicPartition(*p): kafka.structs.OffsetAndMetadata(o, "", -1) for p, o in offsets.items()}
        with self.translated_errors():
            self.client.alter_group_offsets(group, told)


def unreachable_reason(bootstrap_servers: str) -> str | None:
    """Why no address of these can be connected to, or None where one can."""
    reasons = []
    for host, port in parse_addresses(bootstrap_servers):
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except socket.gaierror:
            reasons.append(f"the host name {host!r} is not known")
        except TimeoutError:
            reasons.append(f"{host}:{port} does not answer")
        except OSError as error:
            reasons.append(f"nothing listens on {host}:{port} ({error.strerror or error})")
        else:
            return None
    return "; ".join(reasons)


def check_kafka(bootstrap_servers: str, topic: str, *, options: Mapping[str, Any] | None = None) -> list[Problem]:
    """What is wrong between here and the topic, the first obstacle of each kind; an empty list = nothing."""
    try:
        config = KafkaConfig(bootstrap_servers=bootstrap_servers, options=options or {})
    except ValueError as error:
        return [Problem(str(error), 'write [source] bootstrap_servers = "host:port", several separated by commas')]
    if reason := unreachable_reason(bootstrap_servers):
        return [Problem(f"Kafka: {reason}", "start the broker, or correct [source] bootstrap_servers")]
    try:
        with Admin(config) as admin:
            found = admin.topic(topic)
    except BrokerUnavailableError:
        return [
            Problem(
                f"something listens on {bootstrap_servers}, but does not speak Kafka as we asked",
                "correct the port in [source] bootstrap_servers, or the security settings",
            )
        ]
    except StreamError as error:
        return [Problem(str(error), "look at the broker's log")]
    if found is None:
        return [
            Problem(
                f"there is no topic {topic!r} at {bootstrap_servers}",
                "create it, send something with `springtide replay`, or correct [source] topic",
            )
        ]
    return []
