"""How fast a tool may send: at a mean rate, and only into a topic of the embedded broker that has room."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from springtide.app.version_log.trainer_status import read_status
from springtide.stream.broker.embedded import find_broker
from springtide.stream.broker.topic_cap import TopicCap
from springtide.stream.config import SourceConfig
from springtide.stream.errors import StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from springtide.stream.positions import Partition, Position

MAX_BYTES = 256 << 20
CHECK_EVERY_MESSAGES = 5_000
RECREATE_SECONDS = 5.0
PAUSE_SECONDS = 3.0  # between two messages that let the time of joined topics go on
SETTLE_SECONDS = 2.0  # from when all is joined until it is learned
# the embedded broker searches all the batches that it holds at each fetch, so there should be few
LINGER_MS = 50


LEAST_RETENTION_SECONDS = 3600.0

logger = logging.getLogger(__name__)


def warn_of_retention(admin: Admin, topic: str) -> None:
    """Warn if the broker deletes what is sent within LEAST_RETENTION_SECONDS; tools send with the present time."""
    try:
        retention_ms = int(admin.topic_settings(topic)["retention.ms"])
    except (StreamError, KeyError, ValueError):
        return  # a broker that does not say
    if 0 <= retention_ms < 1000 * LEAST_RETENTION_SECONDS:
        logger.warning(
            "the broker deletes records %g s after they were sent: raise retention.ms of topic %r, or learn them soon",
            retention_ms / 1000,
            topic,
        )


class RateLimiter:
    """Keeps a mean rate: after a delay the sender catches up. Without a rate it never waits."""

    def __init__(self, rate: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate` is per second; None for no limit."""
        self._rate = rate
        self._clock = clock
        self._began = clock()

    def seconds_until(self, num: int) -> float:
        """Return how long it is until the num-th may be sent; negative if that time has passed."""
        return 0.0 if self._rate is None else self._began + num / self._rate - self._clock()

    def wait(self, num: int, stopping: threading.Event) -> None:
        """Wait until the num-th may be sent, or until `stopping` is set."""
        if (seconds := self.seconds_until(num)) > 0:
            stopping.wait(seconds)

    def skip(self, seconds: float) -> None:
        """Do not catch up what was not sent in this many seconds."""
        self._began += seconds


class TrainerReadiness:
    """Whether a trainer has learned and published since this was made; it may compile kernels for minutes first."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        status = read_status(log_path)
        self._learned_before = 0 if status is None else status.samples_trained
        self._version_before = None if status is None else status.version
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """True once its status shows a newer version and more samples learned. Reads the status file until then."""
        if not self._is_ready and (status := read_status(self._log_path)) is not None:
            is_new = status.version is not None and status.version != self._version_before
            self._is_ready = is_new and status.samples_trained > self._learned_before
        return self._is_ready


class TopicQuota:
    """Re-creates a full topic once all of it is learned; until then the producer waits. Joined topics go together.

    For a producer that never ends, and the embedded broker: other brokers have a retention.
    """

    def __init__(
        self,
        source: SourceConfig,
        log_path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        check_every: int = CHECK_EVERY_MESSAGES,
        events: Sequence[str] = (),
    ) -> None:
        """`events`: topics that the same producer sends, and that are joined to that of the source."""
        self._log_path = log_path
        self._check_every = check_every
        self._num_checked = 0  # messages sent at the last check
        self._joined_until_ms: int | None = None  # so far a join must be, if there is one, to have learned everything
        self._joined_at: float | None = None  # since when it is
        self._joined_version: int | None = None  # the newest one some time later
        self._caps: list[TopicCap] = []
        if source.uses_embedded_broker:
            broker = find_broker(log_path)
            self._caps = [
                TopicCap(
                    source.kafka_config(),
                    topic,
                    max_bytes=max_bytes,
                    learned=self._durable_positions,
                    memory_bytes=broker.memory_bytes if broker else lambda: None,
                )
                for topic in (source.topic, *events)
            ]

    def wait_for_room(
        self, producer: Producer, stopping: threading.Event, *, pause: Callable[[], int | None] = lambda: None
    ) -> float:
        """Wait while a topic is full, and return the seconds that took. Cheap while none is.

        `pause` sends what goes on meanwhile, and returns until when a join must be to have learned everything (ms).
        """
        if not self._caps or producer.num_sent - self._num_checked < self._check_every:
            return 0.0
        self._num_checked = producer.num_sent
        began, self._joined_at, self._joined_version = time.monotonic(), None, None
        if any(cap.is_full(producer) for cap in self._caps):
            left = list(self._caps)
            while left and not stopping.is_set():
                if left == self._caps:  # nothing is sent between two topics that are joined
                    self._joined_until_ms = pause()
                seconds = RECREATE_SECONDS if self._joined_until_ms is None else PAUSE_SECONDS
                if left[0].recreate_topic(producer, timeout_seconds=seconds, stopping=stopping.is_set):
                    del left[0]
        return time.monotonic() - began

    def _durable_positions(self) -> Mapping[Partition, Position] | None:
        """The positions that survive a power loss, from the trainer's status; None while it has none."""
        status = read_status(self._log_path)
        if status is None or not status.positions:
            return None
        if self._joined_until_ms is not None:  # a version says from where a join reads again: never from the end
            is_joined = status.join is not None and (status.join.watermark_ms or 0) > self._joined_until_ms
            if not is_joined:
                return None
            self._joined_at = self._joined_at or time.monotonic()
            if time.monotonic() - self._joined_at < SETTLE_SECONDS + 2 * status.publishing.interval_seconds:
                return None  # what was joined last may not be in a version
            self._joined_version = self._joined_version or status.version
            if (status.durable_version or 0) < (self._joined_version or 0):
                return None
            return {Partition.parse(name): Position("", at.end or 0) for name, at in status.positions.items()}
        return {Partition.parse(name): Position("", at.committed) for name, at in status.positions.items()}
