"""How far a join is: the place of the last sample that was learned, and from where partitions are read again.

Part of a version. Imports no compiled code.
"""

# N samples
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from springtide.stream.positions import Partition
from springtide_client.array_types import BoolArray, Float64Array, Int64Array, UInt64Array

NO_TIME = -(1 << 62)  # before every event
BEGINNING = -1  # a replay offset: that of the partition's first record
MAX_KEY_HASH = (1 << 64) - 1
MAX_INT = (1 << 63) - 1

# Grades: what a sample of an impression is. FIRST: the labels of a window, at its end. LATE: the label of an event that
# came after it, at that event. SETTLED: the labels at the time until which events count. COUNTED is no sample: only its
# label's share of events within the window is counted. OTHER_WINDOW, of a learned sample: a first one of labels with
# another window.
FIRST, LATE, SETTLED, COUNTED, OTHER_WINDOW = range(5)

MEMORY = 0.9995  # what a positive still counts when the next one has come: about the last 2,000 do
MIN_SETTLED = 30  # positives from which on their share is taken


class SamplePlace(NamedTuple):
    """A sample's place in the order of all samples."""

    due_ms: int  # the end of its window, or the time of the event that it is released at
    key_hash: int
    shown_ms: int
    partition: int  # number of the impressions' partition
    offset: int
    window_ms: int  # or, of SETTLED and COUNTED, the time until which events count
    grade: int = FIRST

    @staticmethod
    def after_all_at(due_ms: int) -> "SamplePlace":
        """The place behind every sample of a time."""
        return SamplePlace(due_ms, MAX_KEY_HASH, MAX_INT, MAX_INT, MAX_INT, MAX_INT, MAX_INT)


FIRST_PLACE = SamplePlace(NO_TIME, 0, 0, 0, 0, 0)


class LabelReport(NamedTuple):
    """What became of the events of one label."""

    num_unmatched: int = 0  # those whose time is over, and that came within the window of no impression
    on_time_share: float | None = None  # of events that came until the end, those within the window; None: not known


class JoinReport(NamedTuple):
    """What a join holds, and what it waits for."""

    watermark_ms: int | None  # samples whose windows ended before this have been emitted; None before the first
    num_impressions: int  # held, until their windows are over, or until no late event counts any more
    num_events: int  # held
    num_duplicates: int
    slowest: str  # the cursor that holds the others back; "" if all are idle
    labels: Mapping[str, LabelReport] = {}  # by name
    memory_bytes: int = 0  # of what is held
    disk_bytes: int = 0  # of it, in scratch files
    waits_for: str = ""  # the topic that samples wait for although the others go on; "join" where there is no room
    reason: str = ""  # what is to be said of that
    suspect: Sequence[str] = ()  # labels that have become far rarer than they were


@dataclass(frozen=True)
class SamplePlaces:
    """The places of N samples: the columns of SamplePlace."""

    due_ms_N: Int64Array
    key_hash_N: UInt64Array
    shown_ms_N: Int64Array
    partition_N: Int64Array
    offset_N: Int64Array
    window_ms_N: Int64Array
    grade_N: Int64Array

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """The columns, the first one decides the order."""
        return (
            self.due_ms_N,
            self.key_hash_N,
            self.shown_ms_N,
            self.partition_N,
            self.offset_N,
            self.window_ms_N,
            self.grade_N,
        )

    def take(self, rows: Int64Array | BoolArray | slice) -> "SamplePlaces":
        """The places of these rows."""
        return SamplePlaces(*(column_N[rows] for column_N in self.columns))

    def are_after(self, place: SamplePlace) -> BoolArray:
        """Which of them come after another place."""
        after_N: BoolArray = self.due_ms_N > place.due_ms
        for n in np.flatnonzero(self.due_ms_N == place.due_ms).tolist():
            after_N[n] = self.at(n) > place
        return after_N

    def at(self, n: int) -> SamplePlace:
        """The place of one sample."""
        return SamplePlace(*(int(column_N[n]) for column_N in self.columns))


class PartitionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a version says of one partition of one cursor."""

    topic_id: str
    next_offset: int  # up to here the join had read
    replay_offset: int  # from here on it must read again
    replay_newest_ms: int = NO_TIME  # the newest event time before the replay offset
    is_idle: bool = False
    floors: list[tuple[int, int]] = []  # (offset, the newest time that the clock was set to there, ms)
    letters_offset: int = -1  # up to here its dead letters are in the version; -1: up to next_offset

    @property
    def known_letters_offset(self) -> int:
        """The offset up to which its dead letters are in the version."""
        return self.next_offset if self.letters_offset < 0 else self.letters_offset


class EventCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the events of one label."""

    over_ms: int = NO_TIME  # those from before it belong to no impression to come: they are counted
    num_unmatched: int = 0  # of them, those that no impression has found
    num_matched: int = 0  # of the others, those that one has found


class WindowShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of the share F of a label's positives whose event comes within the window (of values: of sums).

    Formulas: deploy/docs/decisions/stream.md. `within`, `late` and `num` are of impressions for which events count no
    longer, and fade; `early_` are of everything that came.
    """

    within: float = 0.0
    late: float = 0.0
    num: float = 0.0
    early_within: float = 0.0
    early_late: float = 0.0

    @property
    def share(self) -> float:
        """F; 1 while nothing is known."""
        if self.num >= MIN_SETTLED:
            return self.within / (self.within + self.late) if self.within + self.late > 0 else 1.0
        return (self.early_within + 1) / (self.early_within + self.early_late + 1)

    def first(self, within: float) -> "WindowShare":
        """Count an impression with an event in its window, at the window's end."""
        return msgspec.structs.replace(self, early_within=self.early_within + within)

    def settled(self, within: float, late: float) -> "WindowShare":
        """Count an impression with an event, once no more of its events count."""
        return WindowShare(
            self.within * MEMORY + within,
            self.late * MEMORY + late,
            self.num * MEMORY + 1,
            self.early_within,
            self.early_late + late,
        )

    def plus(self, other: "WindowShare") -> "WindowShare":
        """The counts of both together."""
        return WindowShare(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, part: float) -> "WindowShare":
        """A part of the counts, from 0 to 1: F is the same."""
        return WindowShare(*(part * count for count in astuple(self)))


class JoinSettings(msgspec.Struct, frozen=True):
    """The settings that decide which samples there are, and in which order."""

    key: tuple[str, ...] = ()
    release: str = "window"
    lateness_ms: int = 0
    early_ms: int = 0
    dedupe_ms: int = 0

    def changed(self, now: "JoinSettings") -> list[str]:
        """The names of the settings, as [join] has them, that differ and with which a join cannot go on.

        With another lateness it can: what is late from now on is decided by it.
        """
        names = {"key": "key", "release": "release", "early_ms": "early_seconds", "dedupe_ms": "dedupe_seconds"}
        return [name for field, name in names.items() if getattr(self, field) != getattr(now, field)]


class JoinState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The join in a version: what was learned, and from where to read again. Some hundred bytes.

    Of several ranks it is that of rank 0, with those of the `others`. Each has the impressions of its share of the
    partitions, and all events.
    """

    released: SamplePlace  # every sample up to here is learned, and no other
    cursors: dict[str, dict[str, PartitionMark]]  # cursor -> partition, written "topic/0"
    num_duplicates: int = 0
    events: dict[str, EventCount] = {}  # of each label
    ahead: dict[str, SamplePlace] = {}  # partition of impressions -> up to where it is learned, if beyond `released`
    shares: dict[str, WindowShare] = {}  # of each label with late events; by the impressions of this rank alone
    others: list["JoinState | None"] = []  # of ranks 1, 2, ...; None: it has learned nothing yet
    settings: JoinSettings | None = None

    @staticmethod
    def of_ranks(states: Sequence["JoinState | None"]) -> "JoinState | None":
        """Put together what each rank says, rank 0's first; None if none has learned anything."""
        if not any(state is not None and state.cursors for state in states):
            return None
        first, *others = states
        return msgspec.structs.replace(first or NOTHING_JOINED, others=others)

    @property
    def ranks(self) -> list["JoinState | None"]:
        """What each rank says. One without partitions of impressions says that it knows no cursors."""
        return [msgspec.structs.replace(self, others=[]) if self.cursors else None, *self.others]

    def total_shares(self) -> dict[str, WindowShare]:
        """What the impressions of all ranks say of each label with late events: the sums of the ranks' counts.

        Each rank remembers about its last 2,000 positives, so R ranks those of R times as many, and each counts alike
        where the ranks have many.
        """
        shares: dict[str, WindowShare] = {}
        for state in self.ranks:
            for label, share in () if state is None else state.shares.items():
                shares[label] = shares[label].plus(share) if label in shares else share
        return shares

    def cursor_names(self) -> set[str]:
        """The names of the cursors of any rank."""
        return {name for state in self.ranks if state is not None for name in state.cursors}

    def replay_offsets(self) -> dict[Partition, int]:
        """From where each partition must be read again, by any of its cursors."""
        offsets: dict[Partition, int] = {}
        for partition, mark in self._marks():
            offset = max(0, mark.replay_offset)
            offsets[partition] = min(offsets.get(partition, offset), offset)
        return offsets

    def next_offsets(self) -> dict[Partition, int]:
        """How far each partition was read, by the furthest of its cursors."""
        offsets: dict[Partition, int] = {}
        for partition, mark in self._marks():
            offsets[partition] = max(offsets.get(partition, 0), mark.next_offset)
        return offsets

    def topic_ids(self) -> dict[Partition, str]:
        """The id of the topic that each partition belongs to."""
        return {partition: mark.topic_id for partition, mark in self._marks()}

    def _marks(self) -> list[tuple[Partition, PartitionMark]]:
        """The marks of all cursors of all ranks."""
        cursors = [marks for state in self.ranks if state is not None for marks in state.cursors.values()]
        return [(Partition.parse(name), mark) for marks in cursors for name, mark in marks.items()]


NOTHING_JOINED = JoinState(FIRST_PLACE, {})


@dataclass(frozen=True)
class ShareHistory:
    """The shares of a label while rows are passed: `states[number_M[m]]` once row m is."""

    states: list[WindowShare]
    number_M: Int64Array

    def before(self, rows: Int64Array) -> Float64Array:
        """The share before each of these rows."""
        shares = np.array([state.share for state in self.states])
        before_M = np.concatenate([[0], self.number_M])
        found: Float64Array = shares[before_M[rows]]
        return found

    def after(self, row: int) -> WindowShare:
        """What is known once a row is passed."""
        return self.states[int(self.number_M[row])]


class JoinedRows:
    """The places of emitted samples, and the join's state beside them."""

    def __init__(
        self,
        places_N: SamplePlaces,
        num_duplicates_N: Int64Array,
        num_matched_N: Mapping[str, Int64Array],
        before: JoinState,
        after: JoinState,
        shares: Mapping[str, ShareHistory] | None = None,
        row_N: Int64Array | None = None,
    ) -> None:
        """`num_duplicates_N`, `num_matched_N`: those up to each sample, of events by label.

        `before`, `after`: with none and with all of them learned. `shares`: by label, over rows of which `row_N` are
        the samples.
        """
        self.places_N, self._num_duplicates_N, self._before, self._after = places_N, num_duplicates_N, before, after
        self._num_matched_N, self._shares, self._row_N = num_matched_N, shares or {}, row_N

    def state_after(self, num: int) -> JoinState:
        """The state once the first `num` samples are learned."""
        if num == len(self._num_duplicates_N):
            return self._after
        if num == 0:
            return self._before
        shares = (
            {}
            if self._row_N is None
            else {label: history.after(int(self._row_N[num - 1])) for label, history in self._shares.items()}
        )
        return msgspec.structs.replace(
            self._before,
            released=self.places_N.at(num - 1),
            num_duplicates=int(self._num_duplicates_N[num - 1]),
            events={
                name: msgspec.structs.replace(count, num_matched=int(self._num_matched_N[name][num - 1]))
                for name, count in self._before.events.items()
            },
            shares=shares,
        )

    def take(self, rows: Int64Array) -> "JoinedRows":
        """Some of the samples, in their order; the others are passed like duplicates."""
        matched_N = {name: num_N[rows] for name, num_N in self._num_matched_N.items()}
        row_N = None if self._row_N is None else self._row_N[rows]
        num_duplicates_N, states = self._num_duplicates_N[rows], (self._before, self._after)
        return JoinedRows(self.places_N.take(rows), num_duplicates_N, matched_N, *states, self._shares, row_N)

    def slice(self, start: int, stop: int) -> "JoinedRows":
        """The samples from start to stop."""
        return JoinedRows(
            self.places_N.take(slice(start, stop)),
            self._num_duplicates_N[start:stop],
            {name: num_N[start:stop] for name, num_N in self._num_matched_N.items()},
            self.state_after(start),
            self.state_after(stop),
            self._shares,
            None if self._row_N is None else self._row_N[start:stop],
        )
