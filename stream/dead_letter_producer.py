"""Sends records that cannot be learned to a topic of their own, with the reason in headers. Knows no schema."""

import time
from collections.abc import Callable, Sequence

from springtide.stream.columns import DeadLetter
from springtide.stream.errors import MessageTooLargeError, StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide_client.system.clock import Backoff

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 2.0
LETTER_BYTES = 500  # headers, and the memory of a Python object
HEADER_BYTES = 4_000  # kept free in a letter whose value is cut to fit its topic


class DeadLetterProducer:
    """Delivers dead letters at least once: after a crash one may arrive twice, with the same position in its headers.

    The topic is created with one partition when the first letter is sent. A value that is longer than the topic allows
    is cut, and a header `value_bytes` says how long it was.
    """

    def __init__(self, kafka: Callable[[], KafkaConfig], topic: str) -> None:
        """`kafka` is called again after a failure: an embedded broker may have moved."""
        self.topic = topic
        self._kafka = kafka
        self._producer: Producer | None = None
        self._unacknowledged: list[DeadLetter] = []
        self._max_value_bytes: int | None = None  # none is longer, once the topic has refused one
        self.unacknowledged_bytes = 0  # memory of the letters that no broker has acknowledged yet

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Start sending the letters; never fails and never waits, flush() does both."""
        if not letters:
            return
        self._unacknowledged += letters
        self.unacknowledged_bytes += sum(map(letter_bytes, letters))
        if self._producer is not None:
            try:
                for letter in letters:
                    self._send(self._producer, letter)
            except StreamError:
                self._drop_producer()

    def flush(self, seconds: float = 30.0) -> None:
        """Wait until the broker has acknowledged every letter. Raises the last StreamError after `seconds`."""
        deadline = time.monotonic() + seconds
        backoff = Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while self._unacknowledged:
            try:
                self._try_flush(max(deadline - time.monotonic(), 0.1))
            except MessageTooLargeError as error:
                self._drop_producer()
                if self._max_value_bytes is not None or error.limit_bytes is None:
                    raise
                self._max_value_bytes = max(0, error.limit_bytes - HEADER_BYTES)
            except StreamError:
                self._drop_producer()
                pause = backoff.fail()
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)

    def close(self) -> None:
        """Close the connection; letters that were not flushed may be lost."""
        self._drop_producer()

    def _try_flush(self, seconds: float) -> None:
        if self._producer is None:
            config = self._kafka()
            with Admin(config) as admin:
                admin.ensure_topic(self.topic)
            self._producer = Producer(config, delivery_seconds=min(max(seconds, 1.0), 30.0))
            for letter in self._unacknowledged:
                self._send(self._producer, letter)
        self._producer.flush(seconds)
        self._unacknowledged, self.unacknowledged_bytes = [], 0

    def _send(self, producer: Producer, letter: DeadLetter) -> None:
        headers = {
            "reason": letter.reason,
            "detail": letter.detail,
            "topic": letter.partition.topic,
            "partition": str(letter.partition.number),
            "offset": str(letter.offset),
            "record_ms": str(letter.record_ms),
        }
        value, key, limit = letter.value, letter.key, self._max_value_bytes
        if limit is not None and len(value or b"") + len(key or b"") > limit:
            headers["value_bytes"] = str(len(value or b""))
            key = None if key is None else key[:limit]
            value = None if value is None else value[: limit - len(key or b"")]
        producer.send(
            self.topic,
            value,
            key=key,
            headers=[(name, text.encode()) for name, text in headers.items()],
        )

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close(0.2)
            self._producer = None


def letter_bytes(letter: DeadLetter) -> int:
    """The approximate memory of a letter, in bytes."""
    return len(letter.value or b"") + len(letter.key or b"") + LETTER_BYTES
