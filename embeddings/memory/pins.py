"""Look-ups whose rows must stay where they are, each known by the tick at which its rows were stamped."""

from collections import deque


class PinSet:
    """The oldest open look-up's tick protects its rows and all stamped since. Of one thread, but for `abandon`."""

    def __init__(self) -> None:
        self.clock = 0  # one tick a look-up
        self._pinned: set[int] = set()
        self._released: deque[int] = deque()  # of those, the look-ups that were dropped since

    def __len__(self) -> int:
        """Look-ups not released when `settle` was last called."""
        return len(self._pinned)

    def pin(self) -> int:
        """A new tick: rows stamped with it stay until it is abandoned."""
        self.clock += 1
        self._pinned.add(self.clock)
        return self.clock

    def release_later(self, tick: int) -> None:
        """Announces a release; safe from any thread at any time."""
        self._released.append(tick)

    def apply_releases(self) -> bool:
        """Makes good the releases that were announced; whether there were any."""
        any_ = bool(self._released)
        while self._released:
            self._pinned.discard(self._released.popleft())
        return any_

    def protect_from(self, otherwise: int) -> int:
        """Rows stamped at this tick or later must stay."""
        return min(self._pinned, default=otherwise)

    def protect_now(self) -> int:
        """The same for what takes place now: nothing need stay where nobody holds a look-up."""
        return self.protect_from(self.clock + 1)
