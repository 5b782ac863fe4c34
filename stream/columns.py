"""The nouns of the stream, as plain arrays: RawRecords (undecoded), Columns (decoded), Batch (to learn at once)."""

# N samples, L labels
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from springtide.stream.join_state import FIRST, OTHER_WINDOW
from springtide.stream.negatives import RowSampling
from springtide.stream.positions import Partition
from springtide_client.features import Features, IdStrings, Ragged
from springtide_client.schema import Schema

if TYPE_CHECKING:
    from springtide.stream.join_state import JoinedRows, JoinState


@dataclass(frozen=True)
class RawRecords:
    """Records of one partition in the order of their offsets; keys and values are slices of one buffer.

    Record n's value is buffer[value_start_N[n] : value_start_N[n] + value_length_N[n]]; a length of -1 is a null
    (tombstone). Keys likewise. Nothing is copied: the buffer lives as long as this object.
    """

    partition: Partition
    buffer: bytes
    value_start_N: npt.NDArray[np.int64]
    value_length_N: npt.NDArray[np.int64]  # -1 = null
    key_start_N: npt.NDArray[np.int64]
    key_length_N: npt.NDArray[np.int64]  # -1 = null
    record_ms_N: npt.NDArray[np.int64]
    offset_N: npt.NDArray[np.int64]
    end: int  # the next offset to read: after these records, compacted offsets and control records
    has_headers: bool = False  # in the buffer, after each value: their number and they, as in Kafka's batch v2

    def __len__(self) -> int:
        return len(self.offset_N)

    def value(self, n: int) -> bytes | None:
        """A copy of record n's value; None for a tombstone."""
        start, length = int(self.value_start_N[n]), int(self.value_length_N[n])
        return None if length < 0 else self.buffer[start : start + length]

    def key(self, n: int) -> bytes | None:
        """A copy of record n's key; None where it has none."""
        start, length = int(self.key_start_N[n]), int(self.key_length_N[n])
        return None if length < 0 else self.buffer[start : start + length]

    def before(self, offset: int) -> "RawRecords":
        """The records before an offset, which becomes the end; all of them where they end at or before it."""
        if self.end <= offset:
            return self
        return replace(self._slice(slice(0, int(np.searchsorted(self.offset_N, offset)))), end=offset)

    def from_offset(self, offset: int) -> "RawRecords":
        """The records at and after an offset."""
        first = int(np.searchsorted(self.offset_N, offset))
        return self if first == 0 else self._slice(slice(first, None))

    def _slice(self, rows: slice) -> "RawRecords":
        return replace(
            self,
            value_start_N=self.value_start_N[rows],
            value_length_N=self.value_length_N[rows],
            key_start_N=self.key_start_N[rows],
            key_length_N=self.key_length_N[rows],
            record_ms_N=self.record_ms_N[rows],
            offset_N=self.offset_N[rows],
        )

    @staticmethod
    def from_messages(
        partition: Partition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        record_ms: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
        end: int | None = None,
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    ) -> "RawRecords":
        """Join separate messages into one buffer: for plain polls and for tests.

        Defaults: no keys, no headers, record times of 0, offsets that count from 0, and an end after the last offset.
        """
        num_records = len(values)
        keys = [None] * num_records if keys is None else keys
        value_length_N = np.fromiter((-1 if v is None else len(v) for v in values), np.int64, num_records)
        key_length_N = np.fromiter((-1 if k is None else len(k) for k in keys), np.int64, num_records)
        parts = [value or b"" for value in values]
        if headers is not None:
            parts = [part + encode_headers(own) for part, own in zip(parts, headers, strict=True)]
        parts += [key or b"" for key in keys]
        ends_2N = np.cumsum(np.fromiter(map(len, parts), np.int64, 2 * num_records))
        starts_2N = np.zeros(2 * num_records, np.int64)
        starts_2N[1:] = ends_2N[:-1]
        offset_N = np.arange(num_records, dtype=np.int64) if offsets is None else np.array(offsets, np.int64)
        if end is None:
            end = int(offset_N[-1]) + 1 if num_records else 0
        return RawRecords(
            partition=partition,
            buffer=b"".join(parts),
            value_start_N=starts_2N[:num_records],
            value_length_N=value_length_N,
            key_start_N=starts_2N[num_records:],
            key_length_N=key_length_N,
            record_ms_N=np.zeros(num_records, np.int64) if record_ms is None else np.array(record_ms, np.int64),
            offset_N=offset_N,
            end=end,
            has_headers=headers is not None,
        )


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return headers as they follow a value in Kafka's record batch v2: zig-zag varints before each text."""
    encoded = bytearray(encode_varint(len(headers)))
    for name, value in headers:
        text = name.encode()
        encoded += encode_varint(len(text)) + text
        encoded += encode_varint(-1) if value is None else encode_varint(len(value)) + value
    return bytes(encoded)


def encode_varint(number: int) -> bytes:
    """Return a zig-zag varint."""
    rest, encoded = 2 * number if number >= 0 else -2 * number - 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


@dataclass(frozen=True)
class DeadLetter:
    """A record that cannot be learned: its raw bytes and the reason."""

    partition: Partition
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    record_ms: int


NO_KEY = 0  # of a record whose key has a null


@dataclass(frozen=True)
class Columns:
    """Samples decoded to columns. Within a partition, rows are in the order of their offsets.

    A record may hold several samples (Arrow): they have its offset, and are learned in one batch or not at all.
    """

    features: Features
    labels_NL: npt.NDArray[np.float32]  # 0..1, or a value (Schema.links); NaN = masked (null among several labels)
    weights_N: npt.NDArray[np.float32]
    event_ms_N: npt.NDArray[np.int64]
    record_ms_N: npt.NDArray[np.int64]  # Kafka's record timestamps
    partition_N: npt.NDArray[np.int32]  # index into partitions
    offset_N: npt.NDArray[np.int64]
    partitions: tuple[Partition, ...]
    dead_letters: tuple[DeadLetter, ...]  # by partition and offset
    end_offsets: dict[Partition, int]  # the next offset to read: after these rows, dead letters and offset gaps
    id_strings: IdStrings
    # another one after a topic was re-created and its offsets start at 0 again; empty where the broker assigns none
    topic_ids: Mapping[Partition, str] = field(default_factory=dict)

    # of streams that are joined: the hash of each record's key, NO_KEY without one; the records as they were fetched;
    # and where the samples are in the order of all
    key_hash_N: npt.NDArray[np.uint64] | None = None
    raw: RawRecords | None = None
    joined: "JoinedRows | None" = None
    sampled: RowSampling | None = None  # where negatives are sampled
    # of the same, where an impression may be learned more than once: the grade of each sample (join_state.py), all are
    # FIRST without it; and the share of events within the window of labels by which they are weighed, NaN of others
    grade_N: npt.NDArray[np.uint8] | None = None
    shares_NL: npt.NDArray[np.float32] | None = None
    served_N: npt.NDArray[np.float32] | None = None  # the score that was served for an impression, NaN: none
    # where scores are grouped: the id of each sample's request, and of its group if that is no feature; or MISSING_ID
    request_N: npt.NDArray[np.int64] | None = None
    group_N: npt.NDArray[np.int64] | None = None
    # the hash of what was read of memory when the sample was served (springtide_client.signals), or MISSING_ID
    signals_N: npt.NDArray[np.int64] | None = None
    numbers_NK: npt.NDArray[np.float32] | None = None  # of `DecodeConfig.number_fields`, NaN: missing

    def __len__(self) -> int:
        return len(self.labels_NL)

    @staticmethod
    def empty(schema: Schema) -> "Columns":
        """Columns without rows that move no position."""
        batch, none_N = Batch.empty(schema), np.zeros(0, np.int64)
        return Columns(
            features=batch.features,
            labels_NL=batch.labels_NL,
            weights_N=batch.weights_N,
            event_ms_N=none_N,
            record_ms_N=none_N,
            partition_N=np.zeros(0, np.int32),
            offset_N=none_N,
            partitions=(),
            dead_letters=(),
            end_offsets={},
            id_strings=IdStrings(np.zeros(0, np.uint16), none_N, []),
        )

    def take(self, rows: npt.NDArray[np.int64]) -> "Columns":
        """The rows at these positions, in that order, without dead letters, strings and ends."""
        return replace(
            self,
            features=self.features.take(rows),
            labels_NL=self.labels_NL[rows],
            weights_N=self.weights_N[rows],
            event_ms_N=self.event_ms_N[rows],
            record_ms_N=self.record_ms_N[rows],
            partition_N=self.partition_N[rows],
            offset_N=self.offset_N[rows],
            dead_letters=(),
            end_offsets={},
            id_strings=IdStrings(np.zeros(0, np.uint16), np.zeros(0, np.int64), []),
            key_hash_N=None if self.key_hash_N is None else self.key_hash_N[rows],
            grade_N=None if self.grade_N is None else self.grade_N[rows],
            shares_NL=None if self.shares_NL is None else self.shares_NL[rows],
            served_N=None if self.served_N is None else self.served_N[rows],
            request_N=None if self.request_N is None else self.request_N[rows],
            group_N=None if self.group_N is None else self.group_N[rows],
            signals_N=None if self.signals_N is None else self.signals_N[rows],
            numbers_NK=None if self.numbers_NK is None else self.numbers_NK[rows],
            raw=None,
            sampled=None if self.sampled is None else self.sampled.take(rows),
        )

    @staticmethod
    def concatenate(parts: Sequence["Columns"]) -> "Columns":
        """The rows of all parts, in order, at least one part; without dead letters, strings and ends."""
        partitions = tuple(dict.fromkeys(partition for part in parts for partition in part.partitions))
        numbers = {partition: number for number, partition in enumerate(partitions)}
        renumbered = [np.array([numbers[p] for p in part.partitions], np.int32)[part.partition_N] for part in parts]
        return replace(
            parts[0].take(np.zeros(0, np.int64)),
            features=Features.concatenate([part.features for part in parts]),
            labels_NL=np.concatenate([part.labels_NL for part in parts]),
            weights_N=np.concatenate([part.weights_N for part in parts]),
            event_ms_N=np.concatenate([part.event_ms_N for part in parts]),
            record_ms_N=np.concatenate([part.record_ms_N for part in parts]),
            partition_N=np.concatenate(renumbered),
            offset_N=np.concatenate([part.offset_N for part in parts]),
            partitions=partitions,
            key_hash_N=None,
            sampled=RowSampling.concatenate([part.sampled for part in parts]),
            served_N=concatenate_present([part.served_N for part in parts]),
            request_N=concatenate_present([part.request_N for part in parts]),
            group_N=concatenate_present([part.group_N for part in parts]),
            signals_N=concatenate_present([part.signals_N for part in parts]),
            numbers_NK=concatenate_present([part.numbers_NK for part in parts]),
        )

    def dead_letter(self, n: int, reason: str, detail: str) -> DeadLetter:
        """Row n as a dead letter; its bytes where the fetched records are still here."""
        partition, offset = self.partitions[self.partition_N[n]], int(self.offset_N[n])
        at = -1 if self.raw is None else int(np.searchsorted(self.raw.offset_N, offset))
        return DeadLetter(
            partition=partition,
            offset=offset,
            reason=reason,
            detail=detail,
            key=None if self.raw is None else self.raw.key(at),
            value=None if self.raw is None else self.raw.value(at),
            record_ms=int(self.record_ms_N[n]),
        )

    def positions_after(self, start: int, stop: int) -> dict[Partition, int]:
        """The next offset to read of each partition, once rows start to stop are learned and the rows before were."""
        if stop == len(self) or self.joined is not None:
            return dict(self.end_offsets)  # of a join: from where to read again
        if len(self.partitions) == 1:
            return {self.partitions[0]: int(self.offset_N[stop - 1]) + 1} if stop > start else {}
        positions: dict[Partition, int] = {}
        for number, partition in enumerate(self.partitions):
            if partition in self.end_offsets and not np.any(self.partition_N[stop:] == number):
                positions[partition] = self.end_offsets[partition]
            elif len(rows := np.flatnonzero(self.partition_N[start:stop] == number)):
                positions[partition] = int(self.offset_N[start + rows[-1]]) + 1
        return positions

    def divides_record(self, row: int) -> bool:
        """Return True if the rows before `row` and those from it on have samples of one record."""
        return (
            self.joined is None
            and 0 < row < len(self)
            and bool(self.offset_N[row - 1] == self.offset_N[row])
            and bool(self.partition_N[row - 1] == self.partition_N[row])
        )

    def record_start(self, row: int) -> int:
        """The last row at or before `row` that is the first one of its record; len(self) counts as one."""
        return int(self._rows_of_record(row)[0]) if self.divides_record(row) else row

    def record_end(self, row: int) -> int:
        """The first row at or after `row` that is the first one of its record; len(self) counts as one."""
        return int(self._rows_of_record(row)[-1]) + 1 if self.divides_record(row) else row

    def _rows_of_record(self, row: int) -> npt.NDArray[np.int64]:
        is_same_N = (self.offset_N == self.offset_N[row]) & (self.partition_N == self.partition_N[row])
        return np.flatnonzero(is_same_N)

    def watermarks(self) -> dict[Partition, int]:
        """The latest event time of each partition's rows, in ms."""
        if self.joined is not None:  # partitions are in one order: each has reached the time of the newest sample
            return dict.fromkeys(self.partitions, int(self.event_ms_N.max())) if len(self) else {}
        if len(self.partitions) == 1:
            return {self.partitions[0]: int(self.event_ms_N.max())} if len(self) else {}
        rows_of = {number: self.partition_N == number for number in np.unique(self.partition_N)}
        return {self.partitions[number]: int(self.event_ms_N[rows].max()) for number, rows in rows_of.items()}

    def slice(self, start: int, stop: int) -> "Columns":
        """Rows start to stop of one partition's columns; dead letters and the end go with the rows before them.

        Neither bound may divide a record.

        Every slice carries all id strings: a string may be delivered more than once, but never too late.
        """
        if start == 0 and stop == len(self):
            return self
        assert not self.divides_record(start)
        assert not self.divides_record(stop)
        end = self.positions_after(start, stop)
        begin = self.positions_after(0, start) if start and self.dead_letters else {}
        letters = self.dead_letters
        if self.joined is not None:
            letters = letters if start == 0 else ()
        else:
            letters = tuple(
                letter
                for letter in letters
                if begin.get(letter.partition, 0) <= letter.offset < end.get(letter.partition, 0)
            )
        return replace(
            self,
            features=self.features.slice(start, stop),
            labels_NL=self.labels_NL[start:stop],
            weights_N=self.weights_N[start:stop],
            event_ms_N=self.event_ms_N[start:stop],
            record_ms_N=self.record_ms_N[start:stop],
            partition_N=self.partition_N[start:stop],
            offset_N=self.offset_N[start:stop],
            key_hash_N=None if self.key_hash_N is None else self.key_hash_N[start:stop],
            joined=None if self.joined is None else self.joined.slice(start, stop),
            sampled=None if self.sampled is None else self.sampled.slice(start, stop),
            grade_N=None if self.grade_N is None else self.grade_N[start:stop],
            shares_NL=None if self.shares_NL is None else self.shares_NL[start:stop],
            served_N=None if self.served_N is None else self.served_N[start:stop],
            request_N=None if self.request_N is None else self.request_N[start:stop],
            group_N=None if self.group_N is None else self.group_N[start:stop],
            signals_N=None if self.signals_N is None else self.signals_N[start:stop],
            numbers_NK=None if self.numbers_NK is None else self.numbers_NK[start:stop],
            dead_letters=letters,
            end_offsets=end,
        )


def concatenate_present(parts: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    """One column of all parts: every part that has rows has it, or none does. None: none does."""
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


@dataclass(frozen=True)
class Batch:
    """Samples to learn at once, and the positions of the stream once they are learned. May hold no sample."""

    features: Features
    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    event_ms_N: npt.NDArray[np.int64]
    record_ms_N: npt.NDArray[np.int64]
    positions: dict[Partition, int]  # the next offset to read, of every partition that this batch moves
    dead_letters: tuple[DeadLetter, ...] = ()  # those that these positions pass
    id_strings: list[IdStrings] = field(default_factory=list)
    topic_ids: dict[Partition, str] = field(default_factory=dict)  # of the partitions in positions, where known
    watermarks: dict[Partition, int] = field(default_factory=dict)  # the latest event time of each partition, ms
    join: "JoinState | None" = None  # once these are learned
    # the rate at which negatives like each sample were kept, of those that are sampled; and how many were dropped here
    rates_N: npt.NDArray[np.float32] | None = None
    num_dropped: int = 0
    grade_N: npt.NDArray[np.uint8] | None = None  # as Columns have them; None: all are first samples
    shares_NL: npt.NDArray[np.float32] | None = None
    served_N: npt.NDArray[np.float32] | None = None
    request_N: npt.NDArray[np.int64] | None = None
    group_N: npt.NDArray[np.int64] | None = None
    signals_N: npt.NDArray[np.int64] | None = None
    numbers_NK: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.labels_NL)

    @property
    def is_scored_N(self) -> npt.NDArray[np.bool_] | None:
        """Which samples are first ones of their labels, the others correct what was learned; None: all."""
        return None if self.grade_N is None else (self.grade_N == FIRST) | (self.grade_N == OTHER_WINDOW)

    @property
    def num_scored(self) -> int:
        """The number of those samples."""
        is_scored_N = self.is_scored_N
        return len(self) if is_scored_N is None else int(np.count_nonzero(is_scored_N))

    @property
    def is_counted_N(self) -> npt.NDArray[np.bool_] | None:
        """Which samples are the first of their impressions, whose ids count; None: all."""
        return None if self.grade_N is None else self.grade_N == FIRST

    @staticmethod
    def empty(schema: Schema) -> "Batch":
        """A batch without samples that moves no position."""
        none_N, no_ends_1 = np.zeros(0, np.int64), np.zeros(1, np.int64)
        return Batch(
            features=Features(
                np.zeros((0, len(schema.categorical)), np.int64),
                tuple(
                    Ragged(none_N, no_ends_1, np.zeros(0, np.float32) if name in schema.weighted else None)
                    for name in schema.lists
                ),
                np.zeros((0, len(schema.dense)), np.float32),
                np.zeros((0, len(schema.bias)), np.int64) if schema.bias else None,
            ),
            labels_NL=np.zeros((0, len(schema.labels)), np.float32),
            weights_N=np.zeros(0, np.float32),
            event_ms_N=none_N,
            record_ms_N=none_N,
            positions={},
        )
