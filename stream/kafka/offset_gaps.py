"""Offsets that the embedded broker has given out and not stored yet: read over them, and their records are lost.

Tansu gives a producer its offsets first and stores the batch then; a fetch in between has what another producer sent
after it. Of other brokers a hole is what compaction or a transaction's end left.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from stream.positions import Partition
from stream.records import RawRecords

GAP_TIMEOUT_SECONDS = 1.0  # then nobody will fill it

logger = logging.getLogger(__name__)


class GapDetector:
    """Cuts what was fetched where the first hole is, until it is filled or old."""

    def __init__(self, offsets: Mapping[Partition, int], clock: Callable[[], float] = time.monotonic) -> None:
        """`offsets`: where each partition is read on from."""
        self._next = dict(offsets)
        self._clock = clock
        self._seen: dict[Partition, tuple[int, float]] = {}  # the hole that is waited for, since when
        self.num_skipped = 0  # that were never filled

    def truncate(self, raws: Iterable[RawRecords]) -> tuple[list[RawRecords], dict[Partition, int]]:
        """What lies before the holes, and where to fetch again."""
        whole: list[RawRecords] = []
        again: dict[Partition, int] = {}
        for raw in raws:
            if raw.partition in again:
                continue
            hole = self._first(raw)
            if hole is not None:
                again[raw.partition] = hole
                raw = cut(raw, hole)
            else:
                self._seen.pop(raw.partition, None)
            self._next[raw.partition] = raw.end
            whole.append(raw)
        return whole, again

    def _first(self, raw: RawRecords) -> int | None:
        """The offset where a hole begins that is worth waiting for."""
        if not len(raw):
            return None
        expected_N = np.concatenate([[self._next[raw.partition]], raw.offset_N[:-1] + 1])
        now = self._clock()
        for n in np.flatnonzero(raw.offset_N > expected_N):
            hole = int(expected_N[n])
            seen, since = self._seen.get(raw.partition, (-1, now))
            if seen != hole:
                self._seen[raw.partition] = hole, now
                return hole
            if now - since < GAP_TIMEOUT_SECONDS:
                return hole
            self.num_skipped += 1
            logger.warning("offsets without a record", extra={"partition": str(raw.partition), "offset": hole})
        return None


def cut(raw: RawRecords, stop: int) -> RawRecords:
    """The records before an offset."""
    if raw.end <= stop:
        return raw
    n = int(np.searchsorted(raw.offset_N, stop))
    return replace(
        raw,
        value_start_N=raw.value_start_N[:n],
        value_length_N=raw.value_length_N[:n],
        key_start_N=raw.key_start_N[:n],
        key_length_N=raw.key_length_N[:n],
        record_ms_N=raw.record_ms_N[:n],
        offset_N=raw.offset_N[:n],
        end=stop,
    )
