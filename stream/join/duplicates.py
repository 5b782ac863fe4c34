"""Which impressions follow another one of their key so soon that they are the same one."""

# N rows in the order of places
from collections.abc import Sequence

import numpy as np

from springtide.stream.join.config import Look
from springtide.stream.join.event_index import EventIndex
from springtide.stream.join.held_bytes import HeldBytes
from springtide.stream.join_state import LATE, SamplePlaces
from springtide_client.array_types import BoolArray, Int64Array


class Duplicates:
    """Remembers the last impressions of each key, for each look at them. One thread."""

    def __init__(self, looks: Sequence[Look], dedupe_ms: int, held: HeldBytes) -> None:
        """`held`: where they are kept, and counted."""
        self._dedupe_ms = dedupe_ms
        self._shown = {look: EventIndex(held) for look in looks}

    def has_room(self, num: int) -> bool:
        """True if so many impressions more can be remembered without exceeding the caps."""
        return all(shown.has_room(num) for shown in self._shown.values())

    def note(self, places_N: SamplePlaces, impression_N: Int64Array) -> BoolArray:
        """Which rows follow an impression of their key by at most `dedupe_ms`.

        `impression_N`: equal where rows are of one impression at one look. A late row is what its first one is; of that
        this knows if it is among these: a duplicate that was known before has no late row.
        """
        is_duplicate_N = np.zeros(len(places_N.due_ms_N), np.bool_)
        for look, seen in self._shown.items():
            rows = np.flatnonzero((places_N.window_ms_N == look.after_ms) & (places_N.grade_N == look.grade))
            places = places_N.take(rows)
            keys, shown = places.key_hash_N, places.shown_ms_N
            order = np.lexsort((places.offset_N, places.partition_N, shown, keys))
            follows = np.zeros(len(rows), np.bool_)
            same_key = keys[order][1:] == keys[order][:-1]
            follows[order[1:]] = same_key & (np.diff(shown[order]) <= self._dedupe_ms)
            is_duplicate_N[rows] = follows | (seen.match(keys, shown - self._dedupe_ms, shown).count_N > 0)
            seen.append(keys, shown, np.zeros(len(rows), np.float32))
        is_late_N = places_N.grade_N == LATE
        if is_late_N.any():
            is_duplicate_N |= is_late_N & np.isin(impression_N, impression_N[is_duplicate_N])
        return is_duplicate_N

    def forget(self, released_ms: int) -> None:
        """Drop those that nothing to come follows, once samples due before this are released."""
        for look, shown in self._shown.items():
            shown.forget(released_ms - look.after_ms - self._dedupe_ms)

    def close(self) -> None:
        """Give back everything that is held."""
        for shown in self._shown.values():
            shown.close()
