"""The event clock: how far event time has come, by the records' own timestamps. Knows no wall clock."""

from collections.abc import Iterable, Mapping

from stream.positions import Partition


class WatermarkClock:
    """The minimum over the partitions of the latest event time learned (their watermarks); it never goes back.

    It is moved by what has been learned, batch by batch, so a replay of the same stream gives the same times.
    Timestamps too far in the future never arrive here: they are dead letters (or one record from the year 3000 would
    expire a table). Whether a partition is idle is decided elsewhere, by wall time. `idle` is part of a version,
    because a replay must not decide it again.
    """

    def __init__(
        self, now_ms: int = 0, watermarks: Mapping[Partition, int] | None = None, idle: Iterable[Partition] = ()
    ) -> None:
        self.now_ms = now_ms
        self.watermarks: dict[Partition, int] = dict(watermarks or {})
        self.idle: set[Partition] = set(idle)

    def observe(self, watermarks: Mapping[Partition, int], *, limit_ms: int | None = None) -> int:
        """Advance by a batch's watermarks, whose partitions are no longer idle; return the time in ms.

        The clock stays at or below `limit_ms`: wall time plus what is allowed to be in the future.
        """
        for partition, event_ms in watermarks.items():
            self.watermarks[partition] = max(self.watermarks.get(partition, event_ms), event_ms)
        self.idle -= watermarks.keys()
        return self._advance(limit_ms)

    def mark_idle(self, idle: Iterable[Partition], *, limit_ms: int | None = None) -> int:
        """Let these partitions no longer hold back the others until a record of theirs is learned; return the time.

        They are read to their end and silent, or deleted. Call it right before a version is taken, which records it.
        """
        self.idle |= self.watermarks.keys() & set(idle)
        return self._advance(limit_ms)

    def _advance(self, limit_ms: int | None) -> int:
        active = [event_ms for partition, event_ms in self.watermarks.items() if partition not in self.idle]
        if active:
            time_ms = min(active) if limit_ms is None else min(*active, limit_ms)
            self.now_ms = max(self.now_ms, time_ms)
        return self.now_ms
