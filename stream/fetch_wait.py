"""How long a fetch may wait at the broker: as short as its answers allow.

Kafka answers as soon as there is anything, however long it may wait. Tansu looks through all batches that a partition
holds, 0.5 µs each, and ends a fetch when its time is over with what it has by then: too short a wait brings nothing,
for ever; too long a one holds records back for a third of it.
"""

LONGEST_MS = 500
SHORTENED = 0.97


class FetchWait:
    """Doubles after an answer that was cut short, and shrinks towards the shortest after each that was not."""

    def __init__(self, shortest_ms: int) -> None:
        self.shortest_ms = shortest_ms
        self._ms = float(shortest_ms)

    @property
    def ms(self) -> int:
        """For the next fetch."""
        return round(self._ms)

    def answered(self, *, cut_short: bool) -> None:
        """An answer came: small, and with records still to fetch behind it, or a good one."""
        if cut_short:
            self._ms = max(self._ms, min(LONGEST_MS, 2 * max(1.0, self._ms)))
        else:
            self._ms = max(self.shortest_ms, SHORTENED * self._ms)
