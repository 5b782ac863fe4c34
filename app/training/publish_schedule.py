"""Decides how long after a version the next one may be written: soon while caught up, seldom while behind."""

import time
from collections.abc import Callable

# behind, versions would be old anyway, and the time that they cost is missing for catching up
BEHIND_SECONDS = 0.5
# a version without samples only moves the time until which everything is learned
HEARTBEAT_SECONDS = 0.1
# what checkpoints may take of the loop's time
MAX_SHARE, MAX_SHARE_BEHIND = 0.25, 0.05
WEIGHT = 0.2  # of the newest version in the mean cost
MAX_SECONDS = 10.0  # however expensive a version is


class PublishSchedule:
    """Keeps `publish_seconds` between versions, and more where a version is expensive or the trainer is behind.

    The caller passes `is_behind`: as soon as the trainer has caught up, the short interval counts again.
    """

    def __init__(self, publish_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.publish_seconds = publish_seconds
        self.cost_seconds = 0.0  # of one version, in the loop; a mean of the newest ones
        self._clock = clock
        self._started_at = float("-inf")

    def start(self) -> None:
        """Note that a version is being written: the next one counts from now."""
        self._started_at = self._clock()

    def add_cost(self, seconds: float) -> None:
        """Note how long the loop stood still for a version."""
        self.cost_seconds += WEIGHT * (seconds - self.cost_seconds)

    def interval_seconds(self, *, is_behind: bool) -> float:
        """The time between the starts of two versions."""
        affordable = self.cost_seconds / (MAX_SHARE_BEHIND if is_behind else MAX_SHARE)
        return max(self.publish_seconds, BEHIND_SECONDS if is_behind else 0.0, min(affordable, MAX_SECONDS))

    @property
    def heartbeat_at(self) -> float:
        """The time, by the schedule's clock, from which on a version without samples may be written."""
        return self._started_at + max(self.publish_seconds, HEARTBEAT_SECONDS)

    def due_at(self, *, is_behind: bool) -> float:
        """The time, by the schedule's clock, from which on the next version may be written."""
        return self._started_at + self.interval_seconds(is_behind=is_behind)
