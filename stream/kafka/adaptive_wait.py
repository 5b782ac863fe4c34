"""Adapts how long the broker may hold a fetch (fetch.max.wait.ms) to the broker's responses.

Kafka responds as soon as it has data, however long it may wait. The embedded broker (Tansu) scans every batch of a
partition, 0.5 µs each, once more for each new batch, and when the wait is over returns whatever it has found. Too short
a wait therefore returns nothing, for ever; too long a wait delays records and keeps the broker's core busy scanning.
"""

from collections import deque

MAX_WAIT_MS = 500
DECAY = 0.9
# a scan in progress when the wait ends delays the response by a part of its own duration: three responses of four are
# delayed by less than this part of a scan, so twice that delay leaves room for a whole scan
NUM_DELAYS, DELAY_QUANTILE, DELAY_FACTOR = 16, 0.75, 2.0


class AdaptiveFetchWait:
    """Doubles the wait while responses fall behind the partition's end, and otherwise lets it decay.

    The wait stays between `min_ms` and MAX_WAIT_MS, and decays no further than the recent delays of responses require.
    """

    def __init__(self, min_ms: int) -> None:
        self.min_ms = min_ms
        self._ms = float(min_ms)
        self._delays_ms: deque[float] = deque(maxlen=NUM_DELAYS)

    @property
    def ms(self) -> int:
        """The wait for the next fetch."""
        return round(self._ms)

    def observe_delay(self, ms: float) -> None:
        """Note how long after its wait a response arrived; negative if it arrived before the wait was over."""
        self._delays_ms.append(max(0.0, ms))

    def observe_response(self, num_records: int, num_behind: int, *, is_full: bool = False) -> None:
        """Note that a response returned `num_records` and left `num_behind` more up to the partition's end.

        A full response had no room for the rest, so it says nothing about the wait. Records left behind are normal
        (they were produced while the response was made) unless they are more than the response returned.
        """
        if num_behind > num_records and not is_full:
            self._ms = max(self._ms, min(MAX_WAIT_MS, 2 * max(1.0, self._ms)))
        else:
            self._ms = min(self._ms, max(self.min_ms, self._scan_ms, DECAY * self._ms))

    @property
    def _scan_ms(self) -> float:
        """How long a whole scan of the partition takes, estimated from the delays."""
        delays_ms = sorted(self._delays_ms)
        return DELAY_FACTOR * delays_ms[int(DELAY_QUANTILE * (len(delays_ms) - 1))] if delays_ms else 0.0
