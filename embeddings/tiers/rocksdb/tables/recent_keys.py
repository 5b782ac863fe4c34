"""Keys whose newest value may not be in a table file yet."""

# N keys
from dataclasses import dataclass, field

import numpy as np

from springtide.embeddings.rows import BoolArray
from springtide.embeddings.tiers.rocksdb.bloom_filter import FIRST_KEYS, KeyFilter, UInt64Array


@dataclass(eq=False)
class _Segment:
    keys: KeyFilter = field(default_factory=KeyFilter)
    num_keys: int = 0
    sequence: int | None = None  # of its last write; None while that is not known


class RecentKeys:
    """Filters of the keys written last, each forgotten when a table file holds all of its writes."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def add(self, mixed_N: UInt64Array) -> None:
        """Add keys before they are written."""
        if not self._segments or self._segments[-1].num_keys >= FIRST_KEYS:
            self._segments.append(_Segment())
        segment = self._segments[-1]
        segment.sequence = None
        segment.keys.add(mixed_N)
        segment.num_keys += len(mixed_N)

    def written(self, sequence: int) -> None:
        """Note that everything added so far has been written, up to this sequence number."""
        for segment in self._segments:
            if segment.sequence is None:
                segment.sequence = sequence

    def forget(self, sequence: int) -> None:
        """Forget the keys whose writes end at or before this sequence number."""
        self._segments = [s for s in self._segments if s.sequence is None or s.sequence > sequence]

    def filters(self) -> tuple[KeyFilter, ...]:
        """A snapshot: it keeps what is forgotten later."""
        return tuple(segment.keys for segment in self._segments)

    def num_bytes(self) -> int:
        return sum(segment.keys.num_bytes() for segment in self._segments)


def contains_any(filters: tuple[KeyFilter, ...], mixed_N: UInt64Array) -> BoolArray:
    """Which keys one of the filters may have."""
    found_N = np.zeros(len(mixed_N), np.bool_)
    for keys in filters:
        found_N |= keys.contains(mixed_N)
    return found_N
