"""What a source's reading thread is doing, for the threads that ask about it."""

import logging
import time

logger = logging.getLogger(__name__)


class SourceStatus:
    """The state of a source and the reason for it. Written by the reading thread, read by any.

    `state` is "waiting" (for what `reason` says), "reading", "finished", "failed" or "closed".
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.state = "waiting"
        self.reason = "not connected yet"
        self.num_resets = 0  # how often the topic had been re-created, or no longer held the positions
        self._waiting_since: float | None = time.monotonic()

    @property
    def waiting_seconds(self) -> float:
        """How long there has been no broker or no topic; 0 while reading."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    def set_reading(self) -> None:
        """The topic is connected."""
        if self.state != "reading":
            logger.info("reading", extra={"topic": self.topic})
        self.state, self.reason, self._waiting_since = "reading", "", None

    def set_waiting(self, reason: str) -> None:
        """The broker or the topic is unavailable; logged when the reason is a new one."""
        if self.state != "waiting" or self.reason != reason:
            logger.warning("waiting: %s", reason, extra={"topic": self.topic})
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        self.state, self.reason = "waiting", reason

    def set_ended(self, state: str, reason: str | None = None) -> None:
        """Nothing more will be read: "finished", "failed" or "closed"; without a reason the last one is kept."""
        self.state = state
        if reason is not None:
            self.reason = reason

    def count_reset(self, reason: str) -> None:
        """The offsets start over."""
        self.num_resets += 1
        logger.warning("topic reset: %s", reason, extra={"topic": self.topic, "num_resets": self.num_resets})
