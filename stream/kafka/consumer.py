"""The door to Kafka: one consumer of a topic's partitions, read by position and without a group.

Knows positions and raw bytes; no format, no queue, no retry: what fails is raised as a StreamError of one line.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stream.errors import BrokerUnavailableError, CorruptBatchError, OffsetOutOfRangeError, RetriableError, StreamError
from stream.kafka.adaptive_wait import AdaptiveFetchWait
from stream.kafka.library import kafka, prepare_library
from stream.kafka.offset_gaps import GapDetector
from stream.kafka.record_batches import RawBatch, install_raw_fetch, records_from_objects, supports_raw_fetch
from stream.positions import Partition
from stream.records import RawRecords

CONNECT_SECONDS = 3.0
# without the hook a fetch may have been sent this long before its answer is seen
UNSEEN_SEND_SECONDS = 1.0
# an answer that comes so long after poll() was called has been waited for
WAITED_SECONDS = 0.001


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """How to reach a broker and how to fetch from it."""

    bootstrap_servers: str  # host:port, several separated by commas
    fetch_wait_ms: int = 5
    partition_fetch_bytes: int = 2 << 20
    fetch_bytes: int = 16 << 20
    options: Mapping[str, Any] = field(default_factory=dict)  # of every client: security_protocol, sasl_mechanism, ...

    def __post_init__(self) -> None:
        if self.fetch_wait_ms < 0:
            raise ValueError(f"fetch_wait_ms must not be negative, not {self.fetch_wait_ms}")
        parse_addresses(self.bootstrap_servers)

    def client_options(self) -> dict[str, Any]:
        """What consumer, producer and admin share."""
        return {
            "bootstrap_servers": [f"{host}:{port}" for host, port in parse_addresses(self.bootstrap_servers)],
            "client_id": "springtide",
            "bootstrap_timeout_ms": int(CONNECT_SECONDS * 1000),
            "reconnect_backoff_max_ms": 2000,
            **self.options,
        }


def parse_addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """[(host, port)]; ValueError names the part that is none."""
    found = []
    for part in bootstrap_servers.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"bootstrap_servers: {part.strip()!r} is not host:port, such as localhost:9092")
        found.append((host.strip("[]"), int(port)))
    return found


def translate_error(error: BaseException, config: KafkaConfig) -> StreamError:
    """kafka-python's error as one of ours, in one line."""
    if isinstance(error, StreamError):
        return error
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, kafka.errors.OffsetOutOfRangeError):
        asked = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        partitions = tuple(Partition(*topic_partition) for topic_partition in asked)
        told = ", ".join(f"{Partition(*topic_partition)} offset {offset}" for topic_partition, offset in asked.items())
        return OffsetOutOfRangeError(f"the broker no longer holds {told or 'the position'}", partitions)
    if isinstance(error, kafka.errors.CorruptRecordError):
        return CorruptBatchError(f"a record batch does not match its checksum: {text}")
    if isinstance(
        error,
        (
            kafka.errors.SaslAuthenticationFailedError,
            kafka.errors.AuthorizationError,
            kafka.errors.UnsupportedSaslMechanismError,
        ),
    ):
        return StreamError(f"the broker at {config.bootstrap_servers} refuses us: {text}; check the credentials")
    if isinstance(
        error, kafka.errors.KafkaConnectionError | kafka.errors.KafkaTimeoutError | kafka.errors.NodeNotReadyError
    ):
        return BrokerUnavailableError(
            f"no Kafka broker answers at {config.bootstrap_servers}: start it, or correct the address"
        )
    if isinstance(error, kafka.errors.KafkaConfigurationError):
        return StreamError(f"Kafka options: {text}")
    return RetriableError(f"Kafka at {config.bootstrap_servers}: {text}")


class PartitionConsumer:
    """Reads given partitions from given offsets on, as raw records."""

    def __init__(
        self, config: KafkaConfig, offsets: Mapping[Partition, int], *, raw: bool = True, whole: bool = False
    ) -> None:
        """`raw` False, or a kafka-python without the names the tap needs: plain polls, slower but equal.

        `whole`: the broker is one whose offsets have no holes but for a moment (see holes.py).
        """
        prepare_library()
        self.config = config
        # where each partition ends, and the monotonic time at which the fetch that told it was sent
        self.ends: dict[Partition, tuple[int, float]] = {}
        try:
            self.consumer = kafka.KafkaConsumer(
                group_id=None,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                enable_incremental_fetch_sessions=False,
                fetch_max_wait_ms=config.fetch_wait_ms,
                max_partition_fetch_bytes=config.partition_fetch_bytes,
                fetch_max_bytes=config.fetch_bytes,
                max_poll_records=1 << 30 if raw else 5000,
                metrics_enabled=False,
                **config.client_options(),
            )
        except kafka.errors.KafkaError as error:
            raise translate_error(error, config) from None
        self._wait = AdaptiveFetchWait(config.fetch_wait_ms)
        self._holes = GapDetector(offsets) if whole else None
        self._answered_bytes: int | None = None  # of the last answer, until the next fetch
        self._asked: dict[Any, int] = {}  # by partition, the offset of its last fetch
        self._polling_since = time.monotonic()
        self.raw = raw and supports_raw_fetch(self.consumer)
        if self.raw:
            install_raw_fetch(self.consumer)
        self.hooked = self._hook()
        self._hook_requests()
        self.topic_partitions = {partition: kafka.TopicPartition(*partition) for partition in offsets}
        self.consumer.assign(list(self.topic_partitions.values()))
        for partition, offset in offsets.items():
            self.consumer.seek(self.topic_partitions[partition], offset)

    def poll(self, timeout_seconds: float) -> list[RawRecords]:
        """What has arrived, within the time; in the order of offsets within a partition."""
        self._polling_since = called = time.monotonic()
        try:
            polled = self.consumer.poll(timeout_ms=int(timeout_seconds * 1000))
        except (kafka.errors.KafkaError, ValueError) as error:
            raise translate_error(error, self.config) from None
        if not self.hooked:
            for partition, topic_partition in self.topic_partitions.items():
                if (end := self.consumer.highwater(topic_partition)) is not None:
                    self.ends[partition] = (end, called - UNSEEN_SEND_SECONDS)
        if self.raw:
            raws = [blob.raw for blobs in polled.values() for blob in blobs if isinstance(blob, RawBatch)]
        else:
            raws = [
                records_from_objects(Partition(*topic_partition), records, self.consumer.position(topic_partition))
                for topic_partition, records in polled.items()
            ]
        if self._holes is None:
            return raws
        raws, again = self._holes.truncate(raws)
        for partition, offset in again.items():
            self.consumer.seek(self.topic_partitions[partition], offset)  # what is being fetched is dropped with it
        return raws

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Fetch from these, and only these, no further; the others go on."""
        paused = {self.topic_partitions[partition] for partition in partitions}
        before = self.consumer.paused()
        if resumed := before - paused:
            self.consumer.resume(*resumed)
        if newly := paused - before:
            self.consumer.pause(*newly)

    def position(self, partition: Partition) -> int:
        """The next offset that will be polled."""
        position: int = self.consumer.position(self.topic_partitions[partition], timeout_ms=1000)
        return position

    def close(self) -> None:
        """Close the connections; an absent broker does not hold it up."""
        self.consumer.close(autocommit=False, timeout_ms=500)

    def _hook(self) -> bool:
        """Learn from each fetch's answer where a partition ends, and when that was asked.

        ListOffsets is not enough: Tansu answers it with the base offset of the last batch + 1, short of the end
        wherever that batch holds several records. Its fetches tell the true end.
        """
        handle = getattr(getattr(self.consumer, "_fetcher", None), "_handle_fetch_response", None)
        if handle is None:
            return False

        def handle_and_look(node_id: Any, fetch_offsets: Any, send_time: float, response: Any) -> None:
            now = time.monotonic()
            if now - self._polling_since > WAITED_SECONDS:  # else it may have lain there since long before
                self._wait.observe_delay((now - send_time) * 1000 - self._wait.ms)
            self._answered_bytes = 0
            for topic in response.responses:
                for told in topic.partitions:
                    self._answered_bytes += len(told.records or b"")
                    # what is readable ends before the first open transaction
                    end = told.last_stable_offset if told.last_stable_offset >= 0 else told.high_watermark
                    if told.error_code == 0 and end >= 0:
                        self.ends[Partition(topic.topic, told.partition_index)] = (end, send_time)
            handle(node_id, fetch_offsets, send_time, response)

        self.consumer._fetcher._handle_fetch_response = handle_and_look
        return True

    def _hook_requests(self) -> None:
        """Grant each fetch the time that the answers before it ask for."""
        fetcher = getattr(self.consumer, "_fetcher", None)
        create = getattr(fetcher, "_create_fetch_requests", None)
        if fetcher is None or create is None:
            return

        def create_patient() -> Any:
            requests = create()
            for request, fetch_offsets in requests.values():
                if self._answered_bytes is not None:
                    brought = sum(at - self._asked.get(told, at) for told, at in fetch_offsets.items())
                    ends = {told: self.ends.get(Partition(*told), (0,))[0] for told in fetch_offsets}
                    behind = sum(max(0, ends[told] - at) for told, at in fetch_offsets.items())
                    is_full = self._answered_bytes >= self.config.partition_fetch_bytes // 2
                    self._wait.observe_response(brought, behind, is_full=is_full)
                    self._answered_bytes = None
                self._asked.update(fetch_offsets)
                request.max_wait_ms = self._wait.ms
            return requests

        fetcher._create_fetch_requests = create_patient
