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

from springtide.stream.positions import Partition
from springtide_client.array_types import BoolArray, Int64Array, UInt64Array

NO_TIME = -(1 << 62)  # before every event
BEGINNING = -1  # a replay offset: that of the partition's first record
MAX_KEY_HASH = (1 << 64) - 1
MAX_INT = (1 << 63) - 1


class SamplePlace(NamedTuple):
    """A sample's place in the order of all samples."""

    due_ms: int  # the end of its window
    key_hash: int
    shown_ms: int
    partition: int  # number of the impressions' partition
    offset: int
    window_ms: int

    @staticmethod
    def after_all_at(due_ms: int) -> "SamplePlace":
        """The place behind every sample of a time."""
        return SamplePlace(due_ms, MAX_KEY_HASH, MAX_INT, MAX_INT, MAX_INT, MAX_INT)


FIRST_PLACE = SamplePlace(NO_TIME, 0, 0, 0, 0, 0)


class LabelReport(NamedTuple):
    """What became of the events of one label."""

    num_unmatched: int = 0  # those whose time is over, and that came within the window of no impression
    on_time_share: float | None = None  # of events that came until the end, those within the window; None: not known


class JoinReport(NamedTuple):
    """What a join holds, and what it waits for."""

    watermark_ms: int | None  # samples whose windows ended before this have been emitted; None before the first
    num_impressions: int  # held, until their windows are over
    num_events: int  # held
    num_duplicates: int
    slowest: str  # the cursor that holds the others back; "" if all are idle
    labels: Mapping[str, LabelReport] = {}  # by name


@dataclass(frozen=True)
class SamplePlaces:
    """The places of N samples: the columns of SamplePlace."""

    due_ms_N: Int64Array
    key_hash_N: UInt64Array
    shown_ms_N: Int64Array
    partition_N: Int64Array
    offset_N: Int64Array
    window_ms_N: Int64Array

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
    others: list["JoinState | None"] = []  # of ranks 1, 2, ...; None: it has learned nothing yet

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


class JoinedRows:
    """The places of emitted samples, and the join's state beside them."""

    def __init__(
        self,
        places_N: SamplePlaces,
        num_duplicates_N: Int64Array,
        num_matched_N: Mapping[str, Int64Array],
        before: JoinState,
        after: JoinState,
    ) -> None:
        """`num_duplicates_N`, `num_matched_N`: those up to each sample, of events by label.

        `before`, `after`: with none and with all of them learned.
        """
        self.places_N, self._num_duplicates_N, self._before, self._after = places_N, num_duplicates_N, before, after
        self._num_matched_N = num_matched_N

    def state_after(self, num: int) -> JoinState:
        """The state once the first `num` samples are learned."""
        if num == len(self._num_duplicates_N):
            return self._after
        if num == 0:
            return self._before
        return msgspec.structs.replace(
            self._before,
            released=self.places_N.at(num - 1),
            num_duplicates=int(self._num_duplicates_N[num - 1]),
            events={
                name: msgspec.structs.replace(count, num_matched=int(self._num_matched_N[name][num - 1]))
                for name, count in self._before.events.items()
            },
        )

    def take(self, rows: Int64Array) -> "JoinedRows":
        """Some of the samples, in their order; the others are passed like duplicates."""
        matched_N = {name: num_N[rows] for name, num_N in self._num_matched_N.items()}
        return JoinedRows(self.places_N.take(rows), self._num_duplicates_N[rows], matched_N, self._before, self._after)

    def slice(self, start: int, stop: int) -> "JoinedRows":
        """The samples from start to stop."""
        return JoinedRows(
            self.places_N.take(slice(start, stop)),
            self._num_duplicates_N[start:stop],
            {name: num_N[start:stop] for name, num_N in self._num_matched_N.items()},
            self.state_after(start),
            self.state_after(stop),
        )
