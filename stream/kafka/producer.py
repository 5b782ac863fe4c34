"""Sends messages to a topic: for replay, the simulator and dead letters. Creates no topic."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from springtide.stream.errors import MessageTooLargeError, ProduceError, StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.connection import connect
from springtide.stream.kafka.library import kafka, prepare_library, translate_error
from springtide_client.system.clock import wall_ms

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
MAX_MESSAGE_SETTING = "max.message.bytes"
# what a record costs a broker besides its bytes: lengths, deltas, its share of a batch's header
RECORD_OVERHEAD_BYTES = 16


def partition_of_key(key: bytes, num_partitions: int) -> int:
    """Return the partition that a producer chooses for a key, as Kafka's clients do."""
    number: int = (kafka.partitioner.default.murmur2(key) & 0x7FFFFFFF) % num_partitions
    return number


class Producer:
    """Appends messages in order, in batches. The first failed message makes the next call raise ProduceError."""

    def __init__(
        self,
        config: KafkaConfig,
        *,
        linger_ms: int = 5,
        delivery_seconds: float = 30.0,
        compression: str | None = None,
        patient: bool = False,
    ) -> None:
        """`compression`: "gzip", "snappy", "lz4" or "zstd"; None sends the records as they are.

        `patient`: wait longer for a busy broker, where nothing else waits for the caller.
        """
        prepare_library()
        self.config = config
        self.linger_ms = linger_ms
        self.delivery_seconds = delivery_seconds
        self.compression, self.patient = compression, patient
        self.num_sent = 0
        self.sent_bytes = 0
        self._failure: tuple[BaseException, str] | None = None  # the first one, and its topic
        self._producer = self._connect()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = 0,
        record_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Append one message; blocks while too many are in flight.

        A `record_ms` of None means now; a `partition` of None lets the key choose. Raises ProduceError.
        """
        self._raise_failure()
        if value is None and key is None:
            key = b""  # kafka-python refuses a message without key and value
        try:
            future = self._producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=wall_ms() if record_ms is None else record_ms,
            )
        except (kafka.errors.KafkaError, AssertionError, ValueError) as error:
            raise self._produce_error(error) from None
        future.add_errback(partial(self._on_failure, topic))
        self.num_sent += 1
        self.sent_bytes += len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES

    def flush(self, seconds: float = 60.0) -> None:
        """Wait until the broker has acknowledged everything sent. Raises ProduceError if it does not."""
        try:
            self._producer.flush(timeout=seconds)
        except kafka.errors.KafkaError as error:
            raise self._produce_error(error) from None
        self._raise_failure()

    def close(self, seconds: float = 5.0) -> None:
        """Flush what can be flushed within the time, drop the rest, and close."""
        try:
            self._producer.flush(timeout=seconds)
        except kafka.errors.KafkaError as error:
            logger.info("messages dropped", extra={"reason": str(error)})
        # its close() would flush again, and where that fails leaves its threads running
        self._producer.flush = lambda timeout=None: None
        self._producer.close(timeout=0)

    def reconnect(self) -> None:
        """Connect again and forget the topics' metadata. Flush before, or messages in flight may be lost."""
        self.close(0)
        self._producer = self._connect()

    def _connect(self) -> Any:
        delivery_ms = int(self.delivery_seconds * 1000)
        try:
            return connect(
                kafka.KafkaProducer,
                self.config,
                patient=self.patient,
                acks="all",
                linger_ms=self.linger_ms,
                compression_type=self.compression,
                batch_size=256 << 10,
                max_request_size=MAX_MESSAGE_BYTES,
                max_block_ms=delivery_ms,
                delivery_timeout_ms=delivery_ms,
                request_timeout_ms=min(10_000, delivery_ms - self.linger_ms),
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        except kafka.errors.KafkaError as error:
            raise translate_error(error, self.config) from None

    def _on_failure(self, topic: str, error: BaseException) -> None:
        self._failure = self._failure or (error, topic)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            (failure, topic), self._failure = self._failure, None
            if isinstance(failure, kafka.errors.MessageSizeTooLargeError | kafka.errors.RecordListTooLargeError):
                raise self._refused_size(topic)
            raise self._produce_error(failure)

    def _refused_size(self, topic: str) -> MessageTooLargeError:
        """The error for a message that the broker found too large: the limit is the topic's."""
        limit = None
        try:
            with Admin(self.config) as admin:
                limit = int(admin.topic_settings(topic)[MAX_MESSAGE_SETTING])
        except (StreamError, KeyError, ValueError):
            pass  # the limit stays unknown
        of = "" if limit is None else f" of {limit:,} bytes"
        return MessageTooLargeError(
            f"the broker at {self.config.bootstrap_servers} refuses a message that is larger than the limit{of} of "
            f"topic {topic!r}: raise {MAX_MESSAGE_SETTING} of that topic, or send smaller messages",
            limit,
        )

    def _produce_error(self, error: BaseException) -> ProduceError:
        if isinstance(error, kafka.errors.MessageSizeTooLargeError):
            return MessageTooLargeError(
                f"a message is larger than the {MAX_MESSAGE_BYTES >> 20} MiB that are sent at most: send smaller ones",
                MAX_MESSAGE_BYTES,
            )
        text = self.config.hide_secrets(str(error).splitlines()[0] if str(error) else type(error).__name__)
        return ProduceError(f"the broker at {self.config.bootstrap_servers} did not take a message: {text}")
