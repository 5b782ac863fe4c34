"""How long a fetch may wait at the broker: as short as its answers allow.

Kafka answers as soon as there is anything, however long it may wait. Tansu looks through all batches that a partition
holds, 0.5 µs each and once more for each new one, and ends a fetch when its time is over with what it has by then: too
short a wait brings nothing, for ever; too long a one holds records back, and keeps the broker's core busy with looking.
"""

from collections import deque

MAX_WAIT_MS = 500
SHORTENED = 0.9
# the look that goes on when the time is over makes an answer late by a part of it: three answers of four are less late
# than this part of the whole, and a wait of twice as much has room for a whole look
NUM_LATE, LATE_SHARE, LOOKS = 16, 0.75, 2.0


class AdaptiveFetchWait:
    """Doubles where answers do not keep up with what comes, else shrinks to the shortest that they have room in."""

    def __init__(self, shortest_ms: int) -> None:
        self.shortest_ms = shortest_ms
        self._ms = float(shortest_ms)
        self._late_ms: deque[float] = deque(maxlen=NUM_LATE)

    @property
    def ms(self) -> int:
        """For the next fetch."""
        return round(self._ms)

    def observe_delay(self, ms: float) -> None:
        """An answer was seen so long after its time was over; less than 0: before."""
        self._late_ms.append(max(0.0, ms))

    def observe_response(self, num_records: int, num_behind: int, *, is_full: bool = False) -> None:
        """An answer brought so many records and left so many behind it; a full one had no room for them.

        What it leaves came while it was made, unless that is more than it brought.
        """
        if num_behind > num_records and not is_full:
            self._ms = max(self._ms, min(MAX_WAIT_MS, 2 * max(1.0, self._ms)))
        else:
            self._ms = min(self._ms, max(self.shortest_ms, self._room_ms, SHORTENED * self._ms))

    @property
    def _room_ms(self) -> float:
        late_ms = sorted(self._late_ms)
        return LOOKS * late_ms[int(LATE_SHARE * (len(late_ms) - 1))] if late_ms else 0.0
