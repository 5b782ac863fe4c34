"""Records that cannot be learned, sent to a topic of their own with what is wrong in headers. Knows no schema."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from springtide_client.system.backoff import Backoff

from stream.columns import DeadLetter
from stream.errors import StreamError
from stream.kafka.admin import Admin
from stream.kafka.config import KafkaConfig
from stream.kafka.producer import Producer

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0  # between tries to reach the broker
LETTER_BYTES = 500  # headers, and what Python needs for one


class DeadLetterProducer:
    """At least once: a letter may be there twice after a crash; topic, partition and offset in its headers tell.

    The topic is made with one partition when the first letter comes.
    """

    def __init__(self, kafka: Callable[[], KafkaConfig], topic: str, *, counts: dict[str, int] | None = None) -> None:
        """`kafka` is asked anew after a failure: an embedded broker may have moved. `counts` so far, by reason."""
        self.topic = topic
        self.counts: Counter[str] = Counter(counts or {})
        self._kafka = kafka
        self._producer: Producer | None = None
        self._unconfirmed: list[DeadLetter] = []
        self.unacknowledged_bytes = 0  # what the letters hold that no broker has acknowledged yet

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Count and send; never fails and waits for nobody: flush() does."""
        if not letters:
            return
        self.counts.update(letter.reason for letter in letters)
        self._unconfirmed += letters
        self.unacknowledged_bytes += sum(map(letter_bytes, letters))
        if self._producer is not None:
            try:
                for letter in letters:
                    self._send(self._producer, letter)
            except StreamError:
                self._drop_producer()

    def flush(self, seconds: float = 30.0) -> None:
        """Return once the broker has acknowledged every letter; the last StreamError when the time is over."""
        deadline = time.monotonic() + seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while self._unconfirmed:
            try:
                self._try_flush(max(deadline - time.monotonic(), 0.1))
            except StreamError:
                self._drop_producer()
                pause = backoff.fail()
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)

    def close(self) -> None:
        """Close the connection; what was not flushed may be lost."""
        self._drop_producer()

    def _try_flush(self, seconds: float) -> None:
        if self._producer is None:
            config = self._kafka()
            with Admin(config) as admin:
                admin.ensure_topic(self.topic)
            self._producer = Producer(config, delivery_seconds=min(max(seconds, 1.0), 30.0))
            for letter in self._unconfirmed:
                self._send(self._producer, letter)
        self._producer.flush(seconds)
        self._unconfirmed, self.unacknowledged_bytes = [], 0

    def _send(self, producer: Producer, letter: DeadLetter) -> None:
        headers = {
            "reason": letter.reason,
            "detail": letter.detail,
            "topic": letter.partition.topic,
            "partition": str(letter.partition.number),
            "offset": str(letter.offset),
            "record_ms": str(letter.record_ms),
        }
        producer.send(
            self.topic,
            letter.value,
            key=letter.key,
            headers=[(name, text.encode()) for name, text in headers.items()],
        )

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close(0.2)
            self._producer = None


def letter_bytes(letter: DeadLetter) -> int:
    """What a letter takes of memory, nearly."""
    return len(letter.value or b"") + len(letter.key or b"") + LETTER_BYTES
