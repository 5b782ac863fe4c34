"""Sends messages to a topic: for replay, the simulator and dead letters. Creates no topic by itself."""

import logging
from collections.abc import Sequence
from typing import Any

from springtide_client.system.clock import wall_ms

from stream.errors import ProduceError
from stream.kafka.consumer import KafkaConfig, translate_error
from stream.kafka.library import kafka, prepare_library

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
# what a record costs a broker beside its bytes: lengths, deltas, its share of a batch's header
RECORD_OVERHEAD_BYTES = 16


class Producer:
    """Appends messages in order, batched; the first that fails makes the next call raise ProduceError."""

    def __init__(self, config: KafkaConfig, *, linger_ms: int = 5, delivery_seconds: float = 30.0) -> None:
        prepare_library()
        self.config = config
        self.linger_ms = linger_ms
        self.delivery_seconds = delivery_seconds
        self.num_sent = 0
        self.sent_bytes = 0
        self._failed: BaseException | None = None
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
        """Append one message; waits while too much is under way. record_ms None = now; partition None = by the key."""
        self._raise_failure()
        if value is None and key is None:
            key = b""  # kafka-python refuses a message that is null altogether
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
            raise self._explained(error) from None
        future.add_errback(self._fail)
        self.num_sent += 1
        self.sent_bytes += len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES

    def flush(self, seconds: float = 60.0) -> None:
        """Return once the broker has acknowledged everything sent; ProduceError where it has not."""
        try:
            self._producer.flush(timeout=seconds)
        except kafka.errors.KafkaError as error:
            raise self._explained(error) from None
        self._raise_failure()

    def close(self, seconds: float = 5.0) -> None:
        """Flush what can be flushed in the time, and close; what is left is dropped."""
        try:
            self._producer.flush(timeout=seconds)
        except kafka.errors.KafkaError as error:
            logger.info("messages were dropped", extra={"why": str(error)})
        # its close() flushes again, and where that fails leaves its threads running
        self._producer.flush = lambda timeout=None: None
        self._producer.close(timeout=0)

    def reconnect(self) -> None:
        """Begin anew with the topics as they are now; flush first, or what is under way may be lost."""
        self.close(0)
        self._producer = self._connect()

    def _connect(self) -> Any:
        delivery_ms = int(self.delivery_seconds * 1000)
        try:
            return kafka.KafkaProducer(
                acks="all",
                linger_ms=self.linger_ms,
                batch_size=256 << 10,
                max_request_size=MAX_MESSAGE_BYTES,
                max_block_ms=delivery_ms,
                delivery_timeout_ms=delivery_ms,
                request_timeout_ms=min(10_000, delivery_ms - self.linger_ms),
                allow_auto_create_topics=False,
                metrics_enabled=False,
                **self.config.client_options(),
            )
        except kafka.errors.KafkaError as error:
            raise translate_error(error, self.config) from None

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error

    def _raise_failure(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise self._explained(failed)

    def _explained(self, error: BaseException) -> ProduceError:
        if isinstance(error, kafka.errors.MessageSizeTooLargeError):
            return ProduceError(f"a message is larger than the {MAX_MESSAGE_BYTES >> 20} MiB that are sent")
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return ProduceError(f"a message was not taken by the broker at {self.config.bootstrap_servers}: {text}")
