"""The event clock: how far event time has come, by the records' own timestamps. Knows no wall clock."""

from collections.abc import Iterable, Mapping

from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare


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
        self.note(watermarks)
        return self._advance(limit_ms)

    def note(self, watermarks: Mapping[Partition, int]) -> None:
        """Take a batch's watermarks without advancing: where the time is agreed on by several readers."""
        for partition, event_ms in watermarks.items():
            self.watermarks[partition] = max(self.watermarks.get(partition, event_ms), event_ms)
        self.idle -= watermarks.keys()

    def earliest_ms(self, share: PartitionShare = ALL_PARTITIONS) -> int | None:
        """The least watermark of a share's partitions that are not idle; None if there is none."""
        active = [event_ms for p, event_ms in self.watermarks.items() if p not in self.idle and share.holds(p)]
        return min(active, default=None)

    def advance_to(self, time_ms: int) -> int:
        """Advance to a time that several readers have agreed on; it never goes back. Return it."""
        self.now_ms = max(self.now_ms, time_ms)
        return self.now_ms

    def mark_idle(self, idle: Iterable[Partition], *, limit_ms: int | None = None) -> int:
        """Let these partitions no longer hold back the others until a record of theirs is learned; return the time.

        They are read to their end and silent, or deleted. Call it right before a version is taken, which records it.
        """
        self.idle |= self.watermarks.keys() & set(idle)
        return self._advance(limit_ms)

    def _advance(self, limit_ms: int | None) -> int:
        earliest_ms = self.earliest_ms()
        if earliest_ms is None:
            return self.now_ms
        return self.advance_to(earliest_ms if limit_ms is None else min(earliest_ms, limit_ms))
