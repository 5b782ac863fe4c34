"""Detects offsets that the embedded broker has assigned but not stored yet: reading past them would lose records.

Tansu assigns a producer its offsets first and stores the batch afterwards; a fetch in between returns what another
producer sent later. With other brokers a gap is what compaction or the end of a transaction left, so it is not awaited.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from springtide.stream.positions import Partition
from springtide.stream.records import RawRecords

GAP_TIMEOUT_SECONDS = 1.0  # a gap that is still open after this long will not be filled

logger = logging.getLogger(__name__)


class GapDetector:
    """Truncates fetched records at the first gap, until the gap is filled or has timed out."""

    def __init__(self, offsets: Mapping[Partition, int], clock: Callable[[], float] = time.monotonic) -> None:
        """`offsets`: the offset that each partition is read from."""
        self._next = dict(offsets)
        self._clock = clock
        self._awaited: dict[Partition, tuple[int, float]] = {}  # the gap that is waited for, and since when
        self.num_skipped = 0  # gaps that timed out

    def truncate(self, raws: Iterable[RawRecords]) -> tuple[list[RawRecords], dict[Partition, int]]:
        """The records before each partition's first gap, and the offsets at which those gaps must be fetched again."""
        before: list[RawRecords] = []
        refetch: dict[Partition, int] = {}
        for raw in raws:
            if raw.partition in refetch:
                continue
            gap = self._first_gap(raw)
            if gap is not None:
                refetch[raw.partition] = gap
                raw = raw.before(gap)
            else:
                self._awaited.pop(raw.partition, None)
            self._next[raw.partition] = raw.end
            before.append(raw)
        return before, refetch

    def _first_gap(self, raw: RawRecords) -> int | None:
        """The offset at which the first gap begins that has not timed out; None without one."""
        if not len(raw):
            return None
        expected_N = np.concatenate([[self._next[raw.partition]], raw.offset_N[:-1] + 1])
        now = self._clock()
        for n in np.flatnonzero(raw.offset_N > expected_N):
            gap = int(expected_N[n])
            awaited, since = self._awaited.get(raw.partition, (-1, now))
            if awaited != gap:
                self._awaited[raw.partition] = gap, now
                return gap
            if now - since < GAP_TIMEOUT_SECONDS:
                return gap
            self.num_skipped += 1
            logger.warning("offset gap skipped", extra={"partition": str(raw.partition), "offset": gap})
        return None
