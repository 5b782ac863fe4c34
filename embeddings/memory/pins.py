"""Pins: the rows of an open lookup must stay in memory, from the lookup until its update or release."""

from collections import deque


class PinSet:
    """The ticks of open lookups: each stamps its rows, and the oldest protects its own rows and all stamped since.

    Used by one thread, except for `release_later`.
    """

    def __init__(self) -> None:
        self.clock = 0  # one tick a lookup
        self._pinned: set[int] = set()
        self._released: deque[int] = deque()  # still in _pinned until `apply_releases`

    def __len__(self) -> int:
        """Lookups that were not released when `apply_releases` was last called."""
        return len(self._pinned)

    def pin(self) -> int:
        """Start a new tick. Rows stamped with it stay in memory until it is released."""
        self.clock += 1
        self._pinned.add(self.clock)
        return self.clock

    def release_later(self, tick: int) -> None:
        """Queue a release for the next `apply_releases`. Safe in any thread at any time, also in a finalizer."""
        self._released.append(tick)

    def apply_releases(self) -> bool:
        """Apply the queued releases. Return True if there were any."""
        any_ = bool(self._released)
        while self._released:
            self._pinned.discard(self._released.popleft())
        return any_

    def protect_from(self, otherwise: int) -> int:
        """The oldest pinned tick: rows stamped with it or a later one must stay. `otherwise` if nothing is pinned."""
        return min(self._pinned, default=otherwise)

    def protect_now(self) -> int:
        """The oldest tick to protect from an eviction between batches: if nothing is pinned, any row may go."""
        return self.protect_from(self.clock + 1)
