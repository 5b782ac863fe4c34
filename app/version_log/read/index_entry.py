"""One version in the files of the log: its place, its head without the tensors, and the whole record."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from springtide.app.version_log.tables import is_row_id
from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.records import (
    Head,
    Record,
    RecordHeader,
    ShardEntry,
    VersionMeta,
    decode_shard_entries,
    is_row_column,
)
from springtide_client.log.frames import Frame, sound_frames
from springtide_client.log.listing import Listing
from springtide_client.log.shard_files import ShardFiles

LENGTH_BYTES = 8  # of the length before the JSON header of a payload


class _Shape(msgspec.Struct):
    shape: tuple[int, ...]


class RecordSummary(NamedTuple):
    """A record's meta and the shapes of its tensors. It is read without the tensors, so no checksum is verified."""

    meta: VersionMeta
    shapes: dict[str, tuple[int, ...]]
    shards: tuple[ShardEntry, ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows that the version writes, in all tables."""
        return sum(shape[0] for name, shape in self.shapes.items() if is_row_id(name))

    @property
    def num_forgotten(self) -> int:
        """The number of keys that it deletes."""
        return self.shapes.get("forgotten.id", (0,))[0]

    def merged(self, shapes: dict[str, tuple[int, ...]]) -> "RecordSummary":
        """Return the summary with the shapes of one of its shard records."""
        merged = dict(self.shapes)
        for name, shape in shapes.items():
            is_joined = name in merged and (is_row_column(name) or name.startswith("sketch."))
            merged[name] = (merged[name][0] + shape[0], *shape[1:]) if is_joined else shape
        return self._replace(shapes=merged)


class IndexEntry(NamedTuple):
    """A version's record where it lies. It reads the version's shard records too."""

    frame: Frame
    shards: ShardFiles
    num_shard_bytes: int = 0

    @property
    def header(self) -> RecordHeader:
        return self.frame.header

    @property
    def number(self) -> int:
        return self.frame.header.number

    @property
    def head(self) -> Head:
        return self.frame.header.head

    @property
    def num_bytes(self) -> int:
        return self.frame.num_bytes + self.num_shard_bytes

    def read_summary(self) -> RecordSummary:
        """Read meta and shapes; LogError if they cannot be read."""
        summary = self._read_summary(self.frame)
        for shard in summary.shards:
            place = self.shards.find(self.header.epoch, self.number, shard)
            if place is None:
                raise LogError(self._missing(shard.rank))
            summary = summary.merged(self._read_summary(place).shapes)
        return summary

    def read_shard_entries(self) -> tuple[ShardEntry, ...]:
        """Read which shard records belong to the version; LogError if that cannot be read."""
        return self._read_summary(self.frame).shards

    def files(self) -> set[Path]:
        """Return the files that hold the version; LogError if a shard record of it is missing."""
        files = {self.frame.path}
        for entry in self.read_shard_entries():
            if (place := self.shards.find(self.header.epoch, self.number, entry)) is None:
                raise LogError(self._missing(entry.rank))
            files.add(place.path)
        return files

    def read(self) -> Record:
        """Read and verify the whole version; LogError if that fails."""
        record = self.read_alone()
        whole = self.shards.complete(record)
        if whole is None:
            raise LogError(self._missing())
        return whole

    def read_alone(self) -> Record:
        """Read and verify the version record, without its shard records."""
        try:
            return self.frame.read()
        except FileNotFoundError:
            raise deleted_meanwhile(self.frame.path.name) from None

    def _read_summary(self, frame: Frame) -> RecordSummary:
        try:
            length = int.from_bytes(frame.read_bytes(LENGTH_BYTES), "little")
            if length > frame.header.length - LENGTH_BYTES:
                raise KeyError("the length")
            return parse_record_summary(frame.read_bytes(length, LENGTH_BYTES))
        except FileNotFoundError:
            raise deleted_meanwhile(frame.path.name) from None
        except (KeyError, UnicodeDecodeError, msgspec.MsgspecError):
            place = f"{frame.path.name} at byte {frame.offset:,}"
            reason = f"{place}: version {self.head} is corrupt: `springtide versions verify` says more"
            raise CorruptRecordError(reason) from None

    def _missing(self, rank: int | None = None) -> str:
        which = "a shard record" if rank is None else f"the shard record of rank {rank}"
        return f"version {self.head}: {which} is missing: `springtide versions verify` says more"


def parse_record_summary(text: bytes) -> RecordSummary:
    """Parse the JSON header of a payload; KeyError, UnicodeDecodeError or MsgspecError if it is malformed."""
    entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(entries.pop("__metadata__", b"{}"), type=dict[str, str])
    meta = msgspec.json.decode(metadata.get("version", "{}"), type=VersionMeta)
    shapes = {name: msgspec.json.decode(raw, type=_Shape).shape for name, raw in entries.items()}
    return RecordSummary(meta, shapes, decode_shard_entries(metadata))


def is_heartbeat(frame: Frame) -> bool:
    """Return True if a record holds no tensors: nothing but a version's meta."""
    return int.from_bytes(frame.read_bytes(LENGTH_BYTES), "little") + LENGTH_BYTES == frame.header.length


class ShardCounts(NamedTuple):
    """The shard records in a log's folder, counted by the numbers of their versions. Nothing is verified."""

    num_bytes: Counter[int]
    num_ranks: Counter[int]  # that have written one
    by_epoch: dict[int, int]  # how many each version of an epoch needs

    @staticmethod
    def of(log_path: Path, listing: Listing) -> "ShardCounts":
        """Read the headers of all shard records."""
        counts = ShardCounts(Counter(), Counter(), {})
        for names in listing.shards.values():
            numbers = set()
            for name in names:
                for frame in sound_frames(log_path / name):
                    counts.num_bytes[frame.header.number] += frame.num_bytes
                    numbers.add(frame.header.number)
            counts.num_ranks.update(numbers)
        return counts

    def num_needed(self, entry: IndexEntry) -> int:
        """Return how many shard records belong to a version: as many as to all of its epoch."""
        epoch = entry.header.epoch
        if epoch not in self.by_epoch:
            try:
                self.by_epoch[epoch] = len(entry.read_shard_entries())
            except LogError:  # damaged: who reads it says so
                return 0
        return self.by_epoch[epoch]


def deleted_meanwhile(name: str) -> LogError:
    """Return the error of a file that went away."""
    return LogError(f"{name} was deleted by the compactor while it was read: run the command again")


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it has been deleted."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
