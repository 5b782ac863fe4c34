"""A least last-seen that moves on while event time stands still: else rows learned then would all expire at once."""

from collections.abc import Mapping
from typing import Any

ROWS_PARTS = 512  # of the rows that the disk can hold: at most so many keys share one last-seen


class LastSeenFloor:
    """Advances by keys looked up, never by wall time, so that the same stream gives the same last-seen.

    A millisecond is added whenever many keys were looked up since event time moved last.
    """

    def __init__(self, disk_bytes: int, row_bytes: int) -> None:
        self.ms = 0
        self._row_bytes = row_bytes
        self._clock_ms = 0  # the newest last-seen that was given
        self._num_keys = 0  # looked up since
        self.set_limit(disk_bytes)

    def set_limit(self, disk_bytes: int) -> None:
        self._max_keys = max(1, disk_bytes // self._row_bytes // ROWS_PARTS)

    def advance(self, event_ms: int) -> None:
        """Before a batch: note event time, and move on if it has stood still for too many keys."""
        if event_ms > self._clock_ms:
            self._clock_ms, self._num_keys = event_ms, 0
        elif self._num_keys >= self._max_keys:
            self.ms = self._clock_ms = self._clock_ms + 1
            self._num_keys = 0

    def add_keys(self, num_keys: int) -> None:
        """Count keys that were looked up."""
        self._num_keys += num_keys

    def state(self) -> dict[str, int]:
        """The state that a version contains."""
        return {"ms": self.ms, "clock_ms": self._clock_ms, "num_keys": self._num_keys}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.ms, self._clock_ms = int(state.get("ms", 0)), int(state.get("clock_ms", 0))
        self._num_keys = int(state.get("num_keys", 0))
