"""The event clock: how far the world's time has come, by the records' own timestamps. Knows no wall clock."""

from collections.abc import Iterable, Mapping

from stream.positions import Partition


class WatermarkClock:
    """The minimum over the partitions of the latest event time seen; it never goes back.

    Moved by what has been learned, batch by batch, so a replay of the same stream gives the same times. Timestamps
    too far in the future never get here: they are dead letters (else one record from the year 3000 expires a table).
    That a partition is idle is decided elsewhere, by wall time; `idle` keeps it: whoever replays must not decide anew.
    """

    def __init__(
        self, now_ms: int = 0, watermarks: Mapping[Partition, int] | None = None, idle: Iterable[Partition] = ()
    ) -> None:
        self.now_ms = now_ms
        self.watermarks: dict[Partition, int] = dict(watermarks or {})
        self.idle: set[Partition] = set(idle)

    def observe(self, watermarks: Mapping[Partition, int], *, limit_ms: int | None = None) -> int:
        """Move by a batch's watermarks; returns the time. Whose they are is idle no more.

        The clock stays at or below `limit_ms`: wall time plus what is allowed to be in the future.
        """
        for partition, event_ms in watermarks.items():
            self.watermarks[partition] = max(self.watermarks.get(partition, event_ms), event_ms)
        self.idle -= watermarks.keys()
        return self._move(limit_ms)

    def mark_idle(self, idle: Iterable[Partition], *, limit_ms: int | None = None) -> int:
        """These are idle: read to their end and silent for a while, or gone. Returns the time.

        They hold the others back no more, until something of them is learned. Call it where a version is cut, which
        then says so.
        """
        self.idle |= self.watermarks.keys() & set(idle)
        return self._move(limit_ms)

    def _move(self, limit_ms: int | None) -> int:
        awake = [event_ms for partition, event_ms in self.watermarks.items() if partition not in self.idle]
        if awake:
            time_ms = min(awake) if limit_ms is None else min(*awake, limit_ms)
            self.now_ms = max(self.now_ms, time_ms)
        return self.now_ms
