"""A cap on what topics of the embedded broker may hold: it keeps everything in memory and has no retention.

A topic is emptied by deleting it and making it anew (Tansu breaks the connection at DeleteRecords), and only when
everything in it has been learned. Whoever reads it sees another topic id and begins at 0, counted. For producers that
never end: the demo's simulator and `replay --loop`. One producer a topic: what another sends meanwhile may be lost.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from stream.kafka.admin import Admin, Topic
from stream.kafka.config import KafkaConfig
from stream.kafka.producer import Producer
from stream.positions import Partition, Position

logger = logging.getLogger(__name__)

Learned = Callable[[], Mapping[Partition, Position] | None]


class TopicCap:
    """Tells when a topic is full, and makes it anew once it is safe."""

    def __init__(
        self,
        config: KafkaConfig,
        topic: str,
        *,
        max_bytes: int,
        learned: Learned,
        memory_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`learned` tells the trainer's positions, or None while nobody learns; `memory_bytes` the broker's memory."""
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        self.config = config
        self.topic = topic
        self.max_bytes = max_bytes
        self.num_recreated = 0
        self._learned = learned
        self._memory_bytes = memory_bytes
        self._begun_at = 0  # the producer's sent_bytes when the topic was made
        self._memory_floor = 0  # memory that a roll did not give back is not the topic's

    def is_full(self, producer: Producer) -> bool:
        """Whether the topic holds more than it may, by what was sent or by the broker's memory."""
        if producer.sent_bytes - self._begun_at > self.max_bytes:
            return True
        return (self._memory_bytes() or 0) - self._memory_floor > self.max_bytes

    def recreate_topic(
        self, producer: Producer, *, timeout_seconds: float, stopping: Callable[[], bool] = lambda: False
    ) -> bool:
        """Make the topic anew as soon as all of it is learned; False, and nothing done, when the time is over.

        1. Flush. 2. Wait until the learned positions have reached the true ends. 3. Delete. 4. Create with as many
        partitions. 5. Let the producer forget the old topic. Nothing may be sent meanwhile.
        """
        producer.flush()
        deadline = time.monotonic() + timeout_seconds
        with Admin(self.config) as admin:
            topic = admin.require_topic(self.topic)
            while not self._all_learned(admin, topic):
                if stopping() or time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            admin.delete_topic(self.topic)
            made = admin.ensure_topic(self.topic, num_partitions=topic.num_partitions)
            assert made.id != topic.id or not made.id, "a topic made anew has the old one's id"
        producer.reconnect()
        self.num_recreated += 1
        self._begun_at = producer.sent_bytes
        self._memory_floor = self._memory_bytes() or 0
        logger.info("topic made anew", extra={"topic": self.topic, "rolls": self.num_recreated})
        return True

    def _all_learned(self, admin: Admin, topic: Topic) -> bool:
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


def delete_topics_by_prefix(config: KafkaConfig, prefix: str, *, keep: Collection[str] = ()) -> list[str]:
    """Delete the topics whose names begin so, but for those kept; returns the deleted. For topics of old simulators."""
    if not prefix:
        raise ValueError("an empty prefix would delete every topic")
    with Admin(config) as admin:
        doomed = [name for name in admin.topics() if name.startswith(prefix) and name not in keep]
        for name in doomed:
            admin.delete_topic(name)
    return doomed
