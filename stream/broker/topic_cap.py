"""Caps what a topic of the embedded broker holds: the broker keeps everything in memory and has no retention.

A full topic is deleted and re-created (Tansu breaks the connection at DeleteRecords), and only when all of it has been
learned. Its readers see another topic id and begin at 0, counted. For producers that never end: the demo's simulator
and `replay --loop`. A topic must have one producer: what another sends meanwhile may be lost.
"""

import logging
import time
from collections.abc import Callable, Mapping

from springtide.stream.kafka.admin import Admin, Topic
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide.stream.positions import Partition, Position

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05

LearnedPositions = Callable[[], Mapping[Partition, Position] | None]


class TopicCap:
    """Reports when a topic is full, and re-creates it once that is safe."""

    def __init__(
        self,
        config: KafkaConfig,
        topic: str,
        *,
        max_bytes: int,
        learned: LearnedPositions,
        memory_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`learned` returns the trainer's positions, or None while unknown; `memory_bytes` the broker's memory."""
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        self.config = config
        self.topic = topic
        self.max_bytes = max_bytes
        self.num_recreated = 0
        self._learned = learned
        self._memory_bytes = memory_bytes
        self._sent_bytes_at_creation = 0  # of the producer
        self._memory_at_creation = 0  # memory that deleting a topic did not free does not count as the topic's

    def is_full(self, producer: Producer) -> bool:
        """Return True if the topic holds more than `max_bytes`, by what was sent or by the broker's memory."""
        if producer.sent_bytes - self._sent_bytes_at_creation > self.max_bytes:
            return True
        return (self._memory_bytes() or 0) - self._memory_at_creation > self.max_bytes

    def recreate_topic(
        self, producer: Producer, *, timeout_seconds: float, stopping: Callable[[], bool] = lambda: False
    ) -> bool:
        """Re-create the topic as soon as all of it is learned. Returns False, and does nothing, after the timeout.

        1. Flush. 2. Wait until the learned positions have reached the true ends. 3. Delete. 4. Create with as many
        partitions. 5. Let the producer forget the old topic. Nothing may be sent meanwhile.
        """
        producer.flush()
        deadline = time.monotonic() + timeout_seconds
        with Admin(self.config) as admin:
            topic = admin.require_topic(self.topic)
            while not self._is_all_learned(admin, topic):
                if stopping() or time.monotonic() > deadline:
                    return False
                time.sleep(POLL_SECONDS)
            admin.delete_topic(self.topic)
            created = admin.ensure_topic(self.topic, num_partitions=topic.num_partitions)
            assert created.id != topic.id or not created.id, "a re-created topic has the old one's id"
        producer.reconnect()
        self.num_recreated += 1
        self._sent_bytes_at_creation = producer.sent_bytes
        self._memory_at_creation = self._memory_bytes() or 0
        logger.info("topic re-created", extra={"topic": self.topic, "num_recreated": self.num_recreated})
        return True

    def _is_all_learned(self, admin: Admin, topic: Topic) -> bool:
        learned = self._learned()
        if learned is None:
            return False
        for partition, end in admin.end_offsets(topic).items():
            position = learned.get(partition, Position(topic.id, 0))
            if position.topic_id not in ("", topic.id):
                position = Position(topic.id, 0)
            if position.offset < end:
                return False
        return True
