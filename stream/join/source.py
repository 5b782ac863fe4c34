"""The joined stream as the trainer sees it: impressions with the labels that their events make.

Events are read as they come, the impressions as late as their windows last: so events are held, and not impressions,
unless those are learned at their events (`release = "event"`, late ones of `importance_weighted`).
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from springtide.stream.column_queue import columns_bytes
from springtide.stream.columns import Columns
from springtide.stream.config import SourceConfig
from springtide.stream.consumer_loop import FRESH_SECONDS, SourceStatus
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.join.config import EventFields, JoinPlan
from springtide.stream.join.held_bytes import HeldBytes
from springtide.stream.join.label_join import LabelJoin
from springtide.stream.join.label_rates import LabelRates
from springtide.stream.join_state import BEGINNING, JoinReport, JoinState, LabelReport
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare, Position
from springtide.stream.source import KafkaSource, Source
from springtide_client.array_types import BoolArray, Float32Array
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

LONGEST_WAIT_SECONDS = 0.05
BEHIND_SECONDS = 1.0  # events that wait for longer are behind; before, they came a moment ago
LONGEST_SILENCE_SECONDS = 10.0  # after that the status names a topic that is waited for, idle or not yet


class JoinSource(Source):
    """One reader for each look at the impressions, one for each topic of events. A poll waits for none of them.

    Of several ranks each joins the impressions of its share of the partitions, and for that reads all events: they are
    few. One without such partitions reads none.
    """

    def __init__(
        self,
        config: SourceConfig,
        plan: JoinPlan,
        schema: Schema,
        state: JoinState | None = None,
        *,
        erasures: Sequence[Erasure] = (),
        share: PartitionShare = ALL_PARTITIONS,
        scratch: Path | None = None,
    ) -> None:
        """`state`: this rank's of the version to go on from. `erasures`: ids to drop from impressions of before them.

        `share`: the partitions of impressions to read. `scratch`: the folder for what memory has no room for.
        """
        self._plan, self._changed = plan, threading.Event()
        seconds = plan.config
        self.join = LabelJoin(
            plan.labels,
            num_labels=len(schema.labels),
            lateness_ms=round(1000 * seconds.lateness_seconds),
            early_ms=round(1000 * seconds.early_seconds),
            dedupe_ms=round(1000 * seconds.dedupe_seconds),
            impressions=config.topic,
            empty=Columns.empty(schema),
            state=state,
            share=share,
            held=HeldBytes(seconds.memory_bytes, seconds.disk_bytes, scratch),
            release=seconds.release,
            key=seconds.key,
        )
        self._rates = LabelRates(schema.labels)
        self._progress = Standstill(min(seconds.idle_seconds, LONGEST_SILENCE_SECONDS) + FRESH_SECONDS)
        self._is_full = False
        shown = config
        if seconds.score is not None and seconds.score not in config.number_fields:
            shown = replace(config, number_fields=(*config.number_fields, seconds.score))
        self._num_numbers = len(config.number_fields)
        self._score = None if seconds.score is None else shown.number_fields.index(seconds.score)
        self._impressions = {
            self.join.cursor_name(look): (
                look,
                self._reader(shown, schema, self.join.cursor_name(look), erasures, share),
            )
            for look in self.join.looks
        }
        self._events = {
            fields.topic: (fields, self._reader(event_config(config, fields.topic), fields.schema, fields.topic))
            for fields in plan.events
        }
        self._readers = {name: reader for name, (_, reader) in (*self._impressions.items(), *self._events.items())}
        self._is_alone = share.num_ranks == 1
        self._reads_events = self._is_drained = False
        self._all_joined_at = time.monotonic()  # when no event waited

    def _reader(
        self,
        config: SourceConfig,
        schema: Schema,
        cursor: str,
        erasures: Sequence[Erasure] = (),
        share: PartitionShare = ALL_PARTITIONS,
    ) -> KafkaSource:
        marks = self.join.partition_marks(cursor)
        positions = {
            partition: Position(mark.topic_id, mark.replay_offset)
            for partition, mark in marks.items()
            if mark.replay_offset != BEGINNING
        }
        # a record of the future makes those after it in its partition late
        lateness_seconds = self._plan.config.lateness_seconds
        config = replace(config, max_future_seconds=min(config.max_future_seconds, lateness_seconds))
        decoder = Decoder(schema, config, key=self._plan.config.key)
        return KafkaSource(
            config,
            schema,
            positions,
            erasures=erasures,
            share=share,
            decoder=decoder,
            on_change=self._changed.set,
            read_before={partition: mark.next_offset for partition, mark in marks.items()},
        )

    def start(self) -> None:
        for _, reader in self._impressions.values():
            reader.start()
        # of many ranks one may have no impressions: it would read all events for nothing
        if not self._reads_events and (self._is_alone or self._has_found_partitions()):
            for _, reader in self._events.values():
                reader.start()
            self._reads_events = True

    def _has_found_partitions(self) -> bool:
        """True once a partition of impressions is read."""
        return any(reader.end_offsets() for _, reader in self._impressions.values())

    @property
    def _started(self) -> list[KafkaSource]:
        """The readers that read, or wait for their topics."""
        impressions = [reader for _, reader in self._impressions.values()]
        return [*impressions, *(reader for _, reader in self._events.values() if self._reads_events)]

    def poll(self, timeout_seconds: float) -> list[Columns]:
        self.start()
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._changed.clear()
            has_read = self._read()
            # nothing is learned as unclicked because the clicks cannot be read
            is_readable = self._note_partitions()
            columns = self.join.take() if is_readable else None
            self._progress.note(self.join.watermark_ms(), has_moved=columns is not None)
            if self.num_waiting == 0:
                self._all_joined_at = time.monotonic()
            if columns is not None:
                assert columns.joined is not None
                self._rates.add(columns.joined.places_N.due_ms_N, columns.labels_NL)
                return [columns]
            is_read = not has_read and all(reader.finished for reader in self._started)
            self._is_drained = is_read and (self.join.is_idle if self._reads_events else not self.has_partitions)
            remaining = deadline - time.monotonic()
            if self._is_drained or remaining <= 0:
                return []
            if not has_read:
                self._changed.wait(min(remaining, LONGEST_WAIT_SECONDS))

    def _read(self) -> bool:
        """Take what the readers have, except from those that are ahead of the others. Return True if there was any.

        Over the cap of memory only the slowest is read; where there is no room at all nothing is.
        """
        has_read, join = False, self.join
        self._is_full = False
        ahead_ms = (2 if join.held.fits_in_memory(0) else 1) * join.lateness_ms
        watermark_ms, slowest = join.watermark_ms(), join.slowest_cursor()
        for name, reader in self._readers.items():
            if name in self._events and not self._reads_events:
                continue
            reached_ms = max(watermark_ms, join.cursor_ms(name)) if name == slowest else watermark_ms
            for columns in reader.poll_while(partial(self._may_read, name, reached_ms + ahead_ms)):
                if name in self._impressions:
                    join.add_impressions(self._impressions[name][0], self._with_score(columns))
                else:
                    join.add_events(name, columns, counted_events(self._events[name][0], columns))
                has_read = True
        return has_read

    def _with_score(self, columns: Columns) -> Columns:
        """The columns of impressions with the score that was served, if they bring it."""
        if self._score is None:
            return columns
        numbers_NK = columns.numbers_NK
        assert numbers_NK is not None
        kept_NK = np.ascontiguousarray(numbers_NK[:, : self._num_numbers]) if self._num_numbers else None
        return dataclasses.replace(columns, numbers_NK=kept_NK, served_N=numbers_NK[:, self._score].copy())

    def _may_read(self, name: str, until_ms: int, columns: Columns) -> bool:
        """True if a cursor is not ahead of the others, and the caps have room for these records."""
        if self.join.cursor_ms(name) > until_ms:
            return False
        has_room = self.join.has_room(len(columns), columns_bytes(columns))
        self._is_full |= not has_room
        return has_room

    def _note_partitions(self) -> bool:
        """Tell the join which partitions there are, and which are silent; return True if all topics can be read."""
        for name, reader in self._readers.items():
            ends = reader.end_offsets()
            if ends:
                self.join.set_partitions(name, ends)
            silent = reader.silent_partitions(self._plan.config.idle_seconds)
            positions = reader.returned_positions()
            for partition in positions.keys() & ends.keys():
                at = positions[partition]
                self.join.skip_to(name, partition, at, is_end=at.offset >= ends[partition])
            self.join.wake_behind(name, {partition: end for partition, end in ends.items() if partition not in silent})
            self.join.mark_idle(name, silent & positions.keys() & ends.keys())
        return self._is_readable()

    def _is_readable(self) -> bool:
        """True if the broker has all topics, as far as is known."""
        return all(
            reader.status.state in ("reading", "finished") and reader.end_offsets() for reader in self._readers.values()
        )

    @property
    def status(self) -> SourceStatus:  # type: ignore[override]
        """That of a reader that waits or has failed, else of the impressions'."""
        states = [reader.status for reader in self._started]
        return next((status for status in states if status.state in ("waiting", "failed")), states[0])

    @property
    def finished(self) -> bool:
        return self._is_drained

    @property
    def has_partitions(self) -> bool:
        return any(reader.has_partitions for _, reader in self._impressions.values())

    @property
    def idle_partitions(self) -> set[Partition]:
        """Those of the impressions, once no sample of theirs is to come."""
        if self.join.num_pending or self.join.is_replaying:
            return set()
        return set().union(*(reader.idle_partitions for _, reader in self._impressions.values()))

    @property
    def num_waiting(self) -> int:
        """Events that are not joined yet; impressions wait on purpose."""
        return sum(reader.num_waiting for _, reader in self._events.values())

    def end_offsets(self) -> dict[Partition, int]:
        return {partition: end for reader in self._readers.values() for partition, end in reader.end_offsets().items()}

    def positions_read(self, learned: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
        """The next offsets of the join; impressions whose windows are not over are no lag.

        While events wait for longer than a moment impressions may too: of those read twice the first reading counts.
        """
        ends, read = self.end_offsets(), dict(learned)
        is_behind = self.num_waiting > 0 and time.monotonic() - self._all_joined_at > BEHIND_SECONDS
        cursors = [name for name in self._readers if name not in self._impressions]
        cursors += [self.join.cursor_name(look) for look in reversed(self.join.looks)]
        for name in cursors:
            for partition, position in self.join.positions(name).items():
                waits = name in self._impressions and not is_behind
                read[partition] = position._replace(offset=ends.get(partition, position.offset)) if waits else position
        return read

    def join_report(self) -> JoinReport | None:
        if not self.has_partitions:
            return None
        join, watermark_ms = self.join, self.join.watermark_ms()
        shares = {name: share.share for name, share in join.values.shares.items()}
        waits_for, reason = self._waits_for()
        return JoinReport(
            watermark_ms if watermark_ms > 0 else None,
            join.num_pending,
            join.num_events,
            join.num_duplicates,
            join.slowest_cursor(),
            {
                name: LabelReport(count.num_unmatched, shares.get(name))
                for name, count in join.values.event_counts.items()
            },
            join.held.memory_used,
            join.held.disk_used,
            waits_for,
            reason,
            self._rates.suspects(),
        )

    def _waits_for(self) -> tuple[str, str]:
        """What samples wait for although there are others, and what is to be said of it; "", "" for nothing."""
        join, held = self.join, self.join.held
        if self._is_full:
            return "join", (
                f"the join holds {held.memory_used:,} bytes in memory and {held.disk_used:,} on disk, "
                f"{join.num_events:,} events and {join.num_pending:,} impressions: "
                "raise [join] memory_bytes or disk_bytes, or shorten the window; nothing is read or lost meanwhile"
            )
        for reader in self._started:
            if reader.status.state == "waiting":
                return reader.status.topic, reader.status.reason
        slowest = join.slowest_cursor()
        num_ahead = sum(reader.num_waiting for name, reader in self._readers.items() if name != slowest)
        is_standing = self._progress.is_standing and not join.is_replaying
        if not slowest or not is_standing or not (num_ahead or join.num_pending):
            return "", ""
        reader = self._readers[slowest]
        ends, at = reader.end_offsets(), join.positions(slowest)
        behind = [f"{p} at {at[p].offset:,} of {end:,}" for p, end in ends.items() if p in at and at[p].offset < end]
        return reader.status.topic, (
            f"the topic {reader.status.topic!r} stands still ({', '.join(behind) or 'its end is not known'}): "
            f"{join.num_pending:,} impressions and {num_ahead:,} records of other topics wait for it"
        )

    def complete_until_ms(self, learned: Mapping[Partition, Position]) -> int | None:
        """Now while everything is read that is due, else the time that is reached: windows are no delay."""
        has_unread = any(reader.num_waiting for _, reader in self._impressions.values())
        is_ahead = not has_unread or self.join.slowest_cursor() not in self._impressions
        if self._is_readable() and self.num_waiting == 0 and is_ahead and not self.join.is_replaying:
            return wall_ms()
        due_ms = self.join.released.due_ms
        return due_ms + self.join.lateness_ms if due_ms > 0 else None

    def stop_at(self, end_offsets: Mapping[Partition, int]) -> None:
        for reader in self._readers.values():
            topic = reader.status.topic
            reader.stop_at({partition: end for partition, end in end_offsets.items() if partition.topic == topic})

    def stop_at_end(self) -> None:
        for reader in self._readers.values():
            reader.stop_at_end()

    @property
    def stop_offsets(self) -> dict[Partition, int] | None:
        offsets = [reader.stop_offsets for reader in self._readers.values()]
        if any(found is None for found in offsets):
            return None
        return {partition: offset for found in offsets if found is not None for partition, offset in found.items()}

    def reset_emitted_strings(self) -> None:
        for _, reader in self._impressions.values():
            reader.reset_emitted_strings()

    def report_offsets(self, offsets: Mapping[Partition, int]) -> None:
        for reader in self._readers.values():
            topic = reader.status.topic
            reader.report_offsets({partition: at for partition, at in offsets.items() if partition.topic == topic})

    def close(self) -> None:
        for reader in self._readers.values():
            reader.end_soon()
        for reader in self._readers.values():
            reader.close()
        self.join.close()


class Standstill:
    """Says when time has stood still for so long, by the clock of the polls: one that is not polled does not stand."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._watermark_ms: int | None = None
        self._since: float | None = None  # the first poll without progress

    def note(self, watermark_ms: int, *, has_moved: bool) -> None:
        """Note what a poll has brought."""
        if has_moved or watermark_ms != self._watermark_ms:
            self._watermark_ms, self._since = watermark_ms, None
        elif self._since is None:
            self._since = self._clock()

    @property
    def is_standing(self) -> bool:
        """True if nothing has moved for so long."""
        return self._since is not None and self._clock() - self._since > self._seconds


def event_config(config: SourceConfig, topic: str) -> SourceConfig:
    """How the events of a topic are read: as impressions are, which alone are sampled."""
    return replace(
        config,
        topic=topic,
        sample_by=(),
        rate_field=None,
        request_field=None,
        group_field=None,
        check_field=None,
        number_fields=(),
        bias_fields=(),
    )


def counted_events(fields: EventFields, columns: Columns) -> dict[int, tuple[BoolArray, Float32Array]]:
    """For each label of a topic, which of its events count (N), and their values (N)."""
    counted = {}
    for label, (where, value_column) in fields.labels.items():
        counts_N = np.ones(len(columns), np.bool_)
        for column, id_ in where.items():
            counts_N &= columns.features.categorical_NC[:, column] == id_
        value_N = np.ones(len(columns), np.float32)
        if value_column is not None:
            value_N = columns.features.dense_NF[:, value_column]
            counts_N &= ~np.isnan(value_N)
        counted[label] = counts_N, value_N
    return counted
