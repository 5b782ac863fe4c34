"""What each label is of an impression, by the events that came; the share F of those in its window; events without one.

Knows no offsets and no order of reading: `LabelJoin` says which impressions are due, and when an event's time is over.
"""

# M rows of impressions that are due, R those of them that a label is looked at for, N samples, L labels
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from springtide.stream.join.config import JoinedLabel
from springtide.stream.join.event_index import EventIndex, Matches
from springtide.stream.join.held_bytes import HeldBytes
from springtide.stream.join.key_index import UInt64Array
from springtide.stream.join_state import (
    COUNTED,
    FIRST,
    LATE,
    NO_TIME,
    EventCount,
    JoinState,
    SamplePlaces,
    ShareHistory,
    WindowShare,
)
from springtide_client.array_types import BoolArray, Float32Array, Int64Array

COUNTS_IN_A_WINDOW = 32  # events are counted so often


class LabelValues:
    """The events of all labels, by key, and what they make of the impressions that are due. One thread."""

    def __init__(
        self,
        labels: Sequence[JoinedLabel],
        num_labels: int,
        early_ms: int,
        held: HeldBytes,
        state: JoinState,
        *,
        counts_unmatched: bool,
    ) -> None:
        """`num_labels`: of the schema. `early_ms`: how much older than its impression an event may seem.

        `held`: where events are kept, and counted. `state`: of the version to go on from. `counts_unmatched`: all
        impressions come here, so an event that none of them finds has none.
        """
        self.labels, self._num_labels, self._early_ms = labels, num_labels, early_ms
        self._counts_unmatched = counts_unmatched
        self._events = [EventIndex(held) for _ in labels]
        self.shares = {label.name: state.shares.get(label.name, WindowShare()) for label in labels if label.has_late}
        self.event_counts = {label.name: state.events.get(label.name, EventCount()) for label in labels}
        # of the events that are read again, so many had been found by impressions that are not
        self._num_found = {name: count.num_matched for name, count in self.event_counts.items()}
        self._read_again_ms: int | None = None  # the newest time of them

    @property
    def num_events(self) -> int:
        """Events that are held."""
        return sum(len(events) for events in self._events)

    def has_room(self, num: int) -> bool:
        """True if so many events more can be held without exceeding the caps."""
        return all(events.has_room(num) for events in self._events)

    def begin(self, newest_ms: int) -> None:
        """Everything from before a version is read again, up to this time; later calls change nothing."""
        if self._read_again_ms is None:
            self._read_again_ms = newest_ms

    def add(self, at: int, key_hash_N: UInt64Array, event_ms_N: Int64Array, value_N: Float32Array) -> None:
        """Add events that count for the label at this position."""
        self._events[at].append(key_hash_N, event_ms_N, value_N)

    def events_until(self, at: int, key_hash_N: UInt64Array, shown_ms_N: Int64Array, to_ms_N: Int64Array) -> Matches:
        """The events that impressions have for the label at this position so far; none of them counts as matched."""
        return self._events[at].match(key_hash_N, shown_ms_N - self._early_ms, to_ms_N, marks=False)

    def of(
        self, places_M: SamplePlaces, is_joined_M: BoolArray
    ) -> tuple[Float32Array, dict[str, Int64Array], dict[str, ShareHistory]]:
        """The labels of rows, (M, L); of each label the events that were found up to each row (M), and its share.

        NaN where a row says nothing of a label.
        """
        num_rows = len(places_M.due_ms_N)
        labels_ML = np.full((num_rows, self._num_labels), np.nan, np.float32)
        num_matched_M: dict[str, Int64Array] = {}
        shares: dict[str, ShareHistory] = {}
        for label, events in zip(self.labels, self._events, strict=True):
            is_look_M = self._are_late(label, events, places_M) if label.holds_impressions else np.zeros(num_rows, bool)
            for look in label.looks:
                is_look_M |= (places_M.window_ms_N == look.after_ms) & (places_M.grade_N == look.grade)
            rows = np.flatnonzero(is_joined_M & is_look_M)
            keys, shown = places_M.key_hash_N[rows], places_M.shown_ms_N[rows]
            grade_R, from_R = places_M.grade_N[rows], shown - self._early_ms
            # all events until then are here; of later ones some, which depends on the order of reading
            end_R = shown + np.where(grade_R == FIRST, label.window_ms, label.until_ms)
            found = events.match(keys, from_R, np.where(grade_R == LATE, places_M.due_ms_N[rows], end_R))
            value_R = label.value_of(found)
            num_new_M = np.zeros(num_rows, np.int64)
            num_new_M[rows] = found.num_new_N
            count = self.event_counts[label.name]
            num_matched_M[label.name] = count.num_matched + np.cumsum(num_new_M)
            num_matched = count.num_matched + int(num_new_M.sum())
            self.event_counts[label.name] = msgspec.structs.replace(count, num_matched=num_matched)
            if not label.has_late:
                labels_ML[rows, label.column] = value_R
                continue
            within_R = label.value_of(events.match(keys, from_R, shown + label.window_ms, marks=False))
            is_said_R = grade_R != COUNTED
            labels_ML[rows[is_said_R], label.column] = value_R[is_said_R]
            shares[label.name] = share_history(
                self.shares[label.name], rows, grade_R, found.count_N, within_R, value_R, num_rows
            )
        return labels_ML, num_matched_M, shares

    def shares_before(self, shares: Mapping[str, ShareHistory], row_N: Int64Array) -> Float32Array | None:
        """The share of each label that is weighed by it, as known before each sample, (N, L), NaN of others.

        None: there is no such label.
        """
        weighed = [label for label in self.labels if label.is_weighed]
        if not weighed:
            return None
        shares_NL = np.full((len(row_N), self._num_labels), np.nan, np.float32)
        for label in weighed:
            shares_NL[:, label.column] = shares[label.name].before(row_N)
        return shares_NL

    def forget(self, released_ms: int) -> None:
        """Count the events that no impression to come can find, of what is released until now, and drop them."""
        for label, events in zip(self.labels, self._events, strict=True):
            self._count(label, events, released_ms)
            events.forget(self.event_counts[label.name].over_ms)

    def close(self) -> None:
        """Give back everything that is held."""
        for events in self._events:
            events.close()

    def _are_late(self, label: JoinedLabel, events: EventIndex, places_M: SamplePlaces) -> BoolArray:
        """Which rows are due because the label's first event came then, after the window."""
        is_late_M: BoolArray = (places_M.window_ms_N == label.window_ms) & (places_M.grade_N == LATE)
        rows = np.flatnonzero(is_late_M)
        due, shown = places_M.due_ms_N[rows], places_M.shown_ms_N[rows]
        found = events.match(places_M.key_hash_N[rows], shown - self._early_ms, shown + label.until_ms, marks=False)
        is_late_M[rows] = (found.count_N > 0) & (found.first_ms_N == due) & (due > shown + label.window_ms)
        return is_late_M

    def _count(self, label: JoinedLabel, events: EventIndex, released_ms: int) -> None:
        """Count the events whose time is over; now or, as that takes a while, after some more time."""
        count, reach_ms = self.event_counts[label.name], label.horizon_ms + self._early_ms
        over_ms = released_ms - reach_ms
        if released_ms == NO_TIME or over_ms - count.over_ms < reach_ms // COUNTS_IN_A_WINDOW:
            return
        num_matched, num_unmatched = events.count(count.over_ms, over_ms)
        num_found = min(self._num_found[label.name], num_unmatched)
        self._num_found[label.name] -= num_found
        num_left = count.num_matched - num_matched - num_found
        if self._read_again_ms is not None and over_ms > self._read_again_ms:  # an impression found it once more
            num_left, self._num_found[label.name] = num_left - self._num_found[label.name], 0
        num_new = num_unmatched - num_found if self._counts_unmatched else 0
        self.event_counts[label.name] = EventCount(over_ms, count.num_unmatched + num_new, num_left)


def share_history(
    share: WindowShare,
    rows: Int64Array,
    grade_R: Int64Array,
    count_R: Int64Array,
    within_R: Float32Array,
    final_R: Float32Array,
    num_rows: int,
) -> ShareHistory:
    """What is known of a share while `num_rows` rows are passed, of which `rows` are looks for its label.

    `count_R`: the events of each, `within_R` and `final_R` the label by those of the window and by all.
    """
    states, changed_M = [share], np.zeros(num_rows, np.int64)
    for r in np.flatnonzero((count_R > 0) & (grade_R != LATE)).tolist():  # a late one is counted when it is settled
        within = float(within_R[r])
        if grade_R[r] == FIRST:
            states.append(states[-1].first(within))
        else:
            states.append(states[-1].settled(within, float(final_R[r]) - within))
        changed_M[rows[r]] = 1
    return ShareHistory(states, np.cumsum(changed_M))
