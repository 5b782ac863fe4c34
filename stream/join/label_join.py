"""Joins events to impressions: from records in any interleaving of partitions to samples in one order.

An impression is a sample once its window is over: with a label of 1, or a count or sum, where events of its key came
within the window, and of 0 where none did. Where events count for longer, a second cursor reads the impressions that
much later, and the join looks at their events once more; or impressions are held, and are samples again at their first
event after the window: what comes of that is the impression's grade. Samples leave in the order (time, key hash,
impression, window, grade), once no record that is not late can change them. So neither the samples nor their order
depend on how partitions interleave, and the place of the last sample that was learned says in a version what has been
learned.

Knows no Kafka. What is pending is not in a version: after a restart the records between two offsets are read again,
and nothing is emitted meanwhile.
"""

# N samples, L labels, U rows of several chunks, M those of them that are passed at once, some of which are no samples
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from springtide.stream.columns import NO_KEY, Columns, DeadLetter
from springtide.stream.join.config import (
    JoinedLabel,
    Look,
    Release,
    cursor_name,
    cursor_slacks,
    late_until_ms,
    looks_of,
)
from springtide.stream.join.cursor import Cursor
from springtide.stream.join.duplicates import Duplicates
from springtide.stream.join.event_index import Matches
from springtide.stream.join.held_bytes import HeldBytes
from springtide.stream.join.held_impressions import DueRows, HeldChunk, HeldImpressions, places_of
from springtide.stream.join.label_values import LabelValues
from springtide.stream.join.partition_clock import PartitionClock
from springtide.stream.join_state import (
    COUNTED,
    FIRST,
    FIRST_PLACE,
    NO_TIME,
    OTHER_WINDOW,
    JoinedRows,
    JoinSettings,
    JoinState,
    PartitionMark,
    SamplePlace,
    SamplePlaces,
)
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare, Position
from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt8Array
from springtide_client.features import IdStrings

NO_KEY_REASON, LATE_REASON = "no_key", "late"
REFUSALS = {
    NO_KEY_REASON: "a field of [join] key is null or missing",
    LATE_REASON: "the record is older than the newest one before it in its partition by more than lateness_seconds",
}


ROW_BITS = 32  # rows of a chunk are fewer than 1 << ROW_BITS


class LabelJoin:
    """The join itself; used by one thread. What it must give is defined by `batch_join` of its tests."""

    def __init__(
        self,
        labels: Sequence[JoinedLabel],
        *,
        num_labels: int,
        lateness_ms: int,
        early_ms: int,
        dedupe_ms: int,
        impressions: str,
        empty: Columns,
        state: JoinState | None = None,
        share: PartitionShare = ALL_PARTITIONS,
        held: HeldBytes | None = None,
        release: Release = "window",
        key: tuple[str, ...] = (),
    ) -> None:
        """`impressions`: their topic; `empty`: columns of them without rows. `state`: of the version to go on from.

        `share`: of the partitions of impressions that are joined here. Of several ranks rank 0 reports which events are
        refused, and none counts those without an impression: it does not know the others'. `held`: where events and
        impressions are kept, and counted. `release` "event": each label has its own window. `key`: the fields that
        make it, to be noted.
        """
        self.labels, self.impressions, self._empty = labels, impressions, empty
        self.lateness_ms, self.early_ms, self.dedupe_ms = lateness_ms, early_ms, dedupe_ms
        self.looks = looks_of(labels)
        state = state or JoinState(FIRST_PLACE, {})
        self.released, self.num_duplicates = state.released, state.num_duplicates
        self._ahead = dict(state.ahead)  # partitions of impressions that were learned beyond `released`
        self._share = share
        self.cursors = cursor_slacks(impressions, labels, release)
        self._late_until_ms = {look: late_until_ms(labels, look) for look in self.looks}
        self._impression_cursors = [self.cursor_name(look) for look in self.looks]
        self._cursors = {name: Cursor(state.cursors.get(name, {}), slack_ms) for name, slack_ms in self.cursors.items()}
        self.held = held or HeldBytes()
        # other ranks have impressions too: which events none has found is not known
        self.values = LabelValues(labels, num_labels, early_ms, self.held, state, counts_unmatched=share.num_ranks == 1)
        self._duplicates = Duplicates(self.looks, dedupe_ms, self.held)
        self._is_early = release == "event"
        self._held = {
            look: HeldImpressions(
                look, early_ms, self.held, is_early=self._is_early, late_until_ms=self._late_until_ms[look]
            )
            for look in self.looks
        }
        self._dead_letters: list[DeadLetter] = []  # since the last samples
        self._id_strings: list[IdStrings] = []
        # how far behind what was released something of a cursor is needed
        self._look_back_ms = {
            self.cursor_name(look): impressions.horizon_ms + dedupe_ms for look, impressions in self._held.items()
        }
        for label in labels:
            look_back_ms = max(self._look_back_ms.get(label.topic, 0), label.horizon_ms + early_ms)
            self._look_back_ms[label.topic] = look_back_ms
        self._settings = JoinSettings(key, release, lateness_ms, early_ms, dedupe_ms)
        if state.settings is not None and state.settings.lateness_ms < lateness_ms:
            self._set_floors()

    def cursor_name(self, look: Look) -> str:
        """The name of the cursor that reads the impressions for a look."""
        return cursor_name(self.impressions, look, self._late_until_ms[look])

    def partition_marks(self, cursor: str) -> dict[Partition, PartitionMark]:
        """Where this cursor begins to read each partition that it knows."""
        return {partition: clock.mark for partition, clock in self._cursors[cursor].clocks.items()}

    @property
    def is_replaying(self) -> bool:
        """True while what a version had read is read again: nothing is emitted meanwhile."""
        return any(cursor.is_replaying for cursor in self._cursors.values())

    @property
    def is_idle(self) -> bool:
        """True while no partition holds time back."""
        return all(clock.is_idle for cursor in self._cursors.values() for clock in cursor.clocks.values())

    @property
    def num_pending(self) -> int:
        """Impressions that are held."""
        return sum(impressions.num for impressions in self._held.values())

    @property
    def num_events(self) -> int:
        """Events that are held."""
        return self.values.num_events

    def has_room(self, num: int, num_bytes: int) -> bool:
        """True if so many records more, of so many bytes, can be held without exceeding the caps."""
        has_room = self.values.has_room(num) and self._duplicates.has_room(num)
        can_find = all(impressions.has_room(num) for impressions in self._held.values())
        return has_room and can_find and self.held.fits(num_bytes)

    def cursor_ms(self, name: str) -> int:
        """How far a cursor is: nothing due later can be released because of it. NO_TIME before its first record."""
        return self._cursors[name].reached_ms

    def slowest_cursor(self) -> str:
        """The name of the cursor that holds the others back; "" if all are idle."""
        active = {
            name: self.cursor_ms(name)
            for name, cursor in self._cursors.items()
            if not cursor.clocks or not all(clock.is_idle for clock in cursor.clocks.values())
        }
        return min(active, key=active.__getitem__) if active else ""

    def next_offset(self, cursor: str, partition: Partition) -> int:
        """The next offset that a cursor reads."""
        return self._cursors[cursor].clocks[partition].next_offset

    def positions(self, cursor: str) -> dict[Partition, Position]:
        """The next offset of each partition of a cursor."""
        return self._cursors[cursor].positions

    def watermark_ms(self) -> int:
        """Samples due before this cannot change: the least over all partitions that are not idle.

        At most the newest time of all partitions, less the lateness; NO_TIME before the first record.
        """
        if not all(cursor.clocks for cursor in self._cursors.values()):
            return NO_TIME  # a topic that is not known yet
        clocks = [(clock, cursor.slack_ms) for cursor in self._cursors.values() for clock in cursor.clocks.values()]
        active = [
            NO_TIME if clock.newest_ms == NO_TIME else clock.newest_ms + slack_ms
            for clock, slack_ms in clocks
            if not clock.is_idle
        ]
        newest_ms = max(clock.newest_ms for clock, _ in clocks)
        if active:  # while events are silent, impressions cannot say by their slack that a window is over
            newest_ms = min(*active, newest_ms)
        return NO_TIME if newest_ms == NO_TIME else newest_ms - self.lateness_ms

    def set_partitions(self, cursor: str, partitions: Collection[Partition]) -> None:
        """Wait for these partitions and no others: one that has no record holds time back until it is idle."""
        clocks = self._cursors[cursor].clocks
        for partition in partitions:
            if partition not in clocks:
                clocks[partition] = self._new_clock()
        for partition in clocks.keys() - set(partitions):
            del clocks[partition]

    def skip_to(self, cursor: str, partition: Partition, position: Position, *, is_end: bool) -> None:
        """Pass what holds no record; `is_end`: the partition ends there. Everything before was added."""
        found = self._cursors[cursor]
        if "" != found.topic_ids.get(partition, "") != position.topic_id:
            found.clocks[partition] = self._new_clock()
        found.topic_ids[partition] = position.topic_id
        found.clocks[partition].skip_to(position.offset, is_end=is_end)

    def mark_idle(self, cursor: str, partitions: Iterable[Partition]) -> None:
        """Let these partitions, which are read to their ends and silent, hold time back no longer."""
        clocks = self._cursors[cursor].clocks
        for partition in partitions:
            if not clocks[partition].is_replaying:
                clocks[partition].is_idle = True

    def wake_behind(self, cursor: str, ends: Mapping[Partition, int]) -> None:
        """Let partitions hold time back again that have records which are not read yet."""
        for partition, end in ends.items():
            clock = self._cursors[cursor].clocks.get(partition)
            if clock is not None and clock.is_idle and clock.next_offset < end and not clock.is_replaying:
                clock.wake(self._floor_ms(cursor, partition))

    def add_impressions(self, look: Look, columns: Columns) -> None:
        """Add impressions of one partition, in the order of their offsets, for one look at them."""
        joined_N = self._observe(self.cursor_name(look), columns)
        if len(columns.id_strings.strings):
            self._id_strings.append(columns.id_strings)
        if joined_N.any():
            rows = np.flatnonzero(joined_N)
            self._held[look].add(columns, rows, self._events_of(look, columns, rows))

    def add_events(self, topic: str, columns: Columns, of_label: Mapping[int, tuple[BoolArray, Float32Array]]) -> None:
        """Add events of one partition, in the order of their offsets.

        `of_label`: by the position of a label, which events count for it (N), and their values (N).
        """
        joined_N = self._observe(topic, columns)
        assert columns.key_hash_N is not None
        for at, (counts_N, value_N) in of_label.items():
            chosen = np.flatnonzero(counts_N & joined_N)
            self.values.add(at, columns.key_hash_N[chosen], columns.event_ms_N[chosen], value_N[chosen])
            label = self.labels[at]
            for look in label.looks:
                self._held[look].note_events(columns.key_hash_N[chosen], columns.event_ms_N[chosen])
            if label.holds_impressions:
                held = self._held[Look(label.window_ms, FIRST)]
                held.note_late_events(columns.key_hash_N[chosen], columns.event_ms_N[chosen], label.until_ms)

    def take(self, max_rows: int = 1 << 16) -> Columns | None:
        """The next samples in their order, at most so many; without samples where only time has passed.

        None if nothing has changed, or while what a version had read is read again.
        """
        if self.is_replaying:
            return None
        clocks = [clock for cursor in self._cursors.values() for clock in cursor.clocks.values()]
        self.values.begin(max((clock.newest_ms for clock in clocks), default=NO_TIME))
        before, watermark_ms = self._state(), self.watermark_ms()
        parts = [part for impressions in self._held.values() for part in impressions.due_before(watermark_ms)]
        places_U, part_U, row_U = places_of(parts)
        order = np.lexsort(places_U.columns[::-1])
        num_new_U = np.cumsum(self._is_new(places_U.take(order)))
        is_all = not len(order) or num_new_U[-1] <= max_rows
        order = order[: np.searchsorted(num_new_U, max_rows, side="right")]
        places_M, part_M, row_M = places_U.take(order), part_U[order], row_U[order]
        is_new_M = self._is_new(places_M)
        is_duplicate_M = self._duplicates.note(places_M, (part_M << ROW_BITS) + row_M)
        for number, (chunk, _) in enumerate(parts):
            at = np.flatnonzero(part_M == number)
            passed = DueRows(row_M[at], places_M.due_ms_N[at], places_M.grade_N[at])
            chunk.remove(passed, is_duplicate_M[at], holds_late=self._late_until_ms[chunk.look] > 0)
        is_joined_M = is_new_M & ~is_duplicate_M
        num_duplicates_M = self.num_duplicates + np.cumsum(is_new_M & is_duplicate_M & (places_M.grade_N == FIRST))
        labels_ML, num_matched_M, shares = self.values.of(places_M, is_joined_M)
        # one that is late for no label, or counted alone, is no sample
        is_sample_M = is_joined_M & ((places_M.grade_N == FIRST) | ~np.isnan(labels_ML).all(axis=1))
        if len(order):
            self.released = max(self.released, places_M.at(-1))
            self.num_duplicates = int(num_duplicates_M[-1])
            self.values.shares = {name: history.states[-1] for name, history in shares.items()}
        if is_all and watermark_ms > NO_TIME:
            self.released = max(self.released, SamplePlace.after_all_at(watermark_ms - 1))
        if self.released == before.released and not self._dead_letters:
            return None
        after = msgspec.structs.replace(
            before,
            released=self.released,
            num_duplicates=self.num_duplicates,
            events=dict(self.values.event_counts),
            ahead=self._partitions_ahead(),
            shares=self.values.shares,
        )
        row_N = np.flatnonzero(is_sample_M)
        places_N = places_M.take(row_N)
        num_matched_N = {name: num_M[row_N] for name, num_M in num_matched_M.items()}
        columns = replace(
            self._gather([chunk for chunk, _ in parts], part_M[row_N], row_M[row_N]),
            labels_NL=labels_ML[row_N],
            grade_N=self._grades(places_N),
            shares_NL=self.values.shares_before(shares, row_N),
            dead_letters=tuple(self._dead_letters),
            end_offsets=before.replay_offsets(),
            topic_ids=before.topic_ids(),
            id_strings=IdStrings.concatenate([self._empty.id_strings, *self._id_strings]),
            joined=JoinedRows(places_N, num_duplicates_M[row_N], num_matched_N, before, after, shares, row_N),
        )
        self._dead_letters, self._id_strings, self._ahead = [], [], after.ahead
        self._forget()
        return columns

    def close(self) -> None:
        """Give back everything that is held."""
        for impressions in self._held.values():
            impressions.close()
        self._duplicates.close()
        self.values.close()

    def _observe(self, name: str, columns: Columns) -> BoolArray:
        """Pass records of one partition; those without a key and late ones are dead letters. Return the others (N)."""
        (partition,) = columns.end_offsets
        cursor, end = self._cursors[name], columns.end_offsets[partition]
        topic_id = columns.topic_ids.get(partition, "")
        clock = cursor.clocks.get(partition)
        if clock is None or "" != cursor.topic_ids.get(partition, "") != topic_id:
            clock = cursor.clocks[partition] = self._new_clock()
        cursor.topic_ids[partition] = topic_id
        if clock.is_idle and len(columns) and columns.offset_N[-1] >= clock.mark.next_offset:
            clock.wake(self._floor_ms(name, partition))
        known_end = clock.letters_offset  # dead letters before it are in the version
        assert columns.key_hash_N is not None
        no_key_N = columns.key_hash_N == NO_KEY
        late_N = clock.observe(columns.offset_N, columns.event_ms_N, end, self.lateness_ms) & ~no_key_N
        joined_N: BoolArray = ~(no_key_N | late_N)
        is_of_events = name not in self._impression_cursors
        if is_of_events and self._share.rank > 0:
            return joined_N
        refused = {LATE_REASON: late_N}
        # of several cursors of the impressions one reports what each finds; what is late each window decides itself,
        # and a later look is at impressions that were learned
        if is_of_events or name == self._impression_cursors[0]:
            self._dead_letters += [letter for letter in columns.dead_letters if letter.offset >= known_end]
            refused[NO_KEY_REASON] = no_key_N
        elif name in {self.cursor_name(look) for look in self.looks if look.grade != FIRST}:
            refused = {}
        for reason, refused_N in refused.items():
            self._dead_letters += [
                columns.dead_letter(n, reason, REFUSALS[reason])
                for n in np.flatnonzero(refused_N & (columns.offset_N >= known_end)).tolist()
            ]
        return joined_N

    def _set_floors(self) -> None:
        """More may be late than before: what comes from a time that was released is late all the same."""
        for name, cursor in self._cursors.items():
            for partition, clock in cursor.clocks.items():
                if not clock.is_idle:  # one that is comes back with a floor in any case
                    clock.wake(self._floor_ms(name, partition))

    def _floor_ms(self, name: str, partition: Partition) -> int:
        """The newest time of a partition that was idle: what it brings from before it less the lateness is late."""
        learned = self._learned(partition) if name in self._impression_cursors else self.released
        return learned.due_ms + 1 + self.lateness_ms - self._cursors[name].slack_ms

    def _new_clock(self) -> PartitionClock:
        """The clock of a partition that no version knows; if others went on without it, it is as one that was idle."""
        clock = PartitionClock.of(PartitionMark("", 0, 0))
        clock.is_idle = self.released > FIRST_PLACE
        return clock

    def _is_new(self, places_N: SamplePlaces) -> BoolArray:
        """Which places come after what was released, and after what their partitions are ahead of that."""
        is_new_N = places_N.are_after(self.released)
        for name, place in self._ahead.items():
            is_new_N &= (places_N.partition_N != Partition.parse(name).number) | places_N.are_after(place)
        return is_new_N

    def _learned(self, partition: Partition) -> SamplePlace:
        """Up to where a partition of impressions is learned."""
        return max(self.released, self._ahead.get(str(partition), self.released))

    def _grades(self, places_N: SamplePlaces) -> UInt8Array | None:
        """What each sample is of its impression; None where all are first ones."""
        if sum(look.grade != COUNTED for look in self.looks) == 1 and not any(self._late_until_ms.values()):
            return None
        is_first_N = places_N.grade_N == FIRST
        is_again_N = is_first_N & (places_N.window_ms_N != self.looks[0].after_ms)
        grade_N: UInt8Array = np.where(is_again_N, OTHER_WINDOW, places_N.grade_N).astype(np.uint8)
        return grade_N

    def _events_of(self, look: Look, columns: Columns, rows: Int64Array) -> list[Matches]:
        """The events so far of impressions that are released at them, for each label that does that."""
        assert columns.key_hash_N is not None
        keys, shown = columns.key_hash_N[rows], columns.event_ms_N[rows]
        return [
            self.values.events_until(at, keys, shown, shown + label.horizon_ms)
            for at, label in enumerate(self.labels)
            if look in label.looks and (self._is_early or (label.holds_impressions and look.grade == FIRST))
        ]

    def _gather(self, chunks: Sequence[HeldChunk], part_N: Int64Array, row_N: Int64Array) -> Columns:
        """The samples' columns, in their order, from the chunks that hold them."""
        clocks = self._cursors[self.cursor_name(self.looks[0])].clocks
        all_partitions = replace(self._empty, partitions=tuple(sorted(clocks)))
        pieces, place_N, start = [all_partitions], np.empty(len(part_N), np.int64), 0
        for number, chunk in enumerate(chunks):
            at = np.flatnonzero(part_N == number)
            pieces.append(chunk.columns.take(row_N[at]))
            place_N[at] = np.arange(start, start + len(at))
            start += len(at)
        return Columns.concatenate(pieces).take(place_N)

    def _forget(self) -> None:
        """Drop what no sample to come can need."""
        for impressions in self._held.values():
            impressions.forget(self.released.due_ms)
        self.values.forget(self.released.due_ms)
        self._duplicates.forget(self.released.due_ms)

    def _state(self) -> JoinState:
        """What a version says that has learned everything released so far."""
        oldest_ms = {name: self.released.due_ms - look_back_ms for name, look_back_ms in self._look_back_ms.items()}
        for label in self.labels:
            oldest_ms[label.topic] = min(oldest_ms[label.topic], self.values.event_counts[label.name].over_ms)
        return JoinState(
            self.released,
            {name: cursor.marks(oldest_ms[name]) for name, cursor in self._cursors.items()},
            self.num_duplicates,
            dict(self.values.event_counts),
            ahead=self._partitions_ahead(),
            shares=self.values.shares,
            settings=self._settings,
        )

    def _partitions_ahead(self) -> dict[str, SamplePlace]:
        """The partitions of impressions that were learned beyond what was released, and up to where."""
        return {name: place for name, place in self._ahead.items() if place > self.released}
