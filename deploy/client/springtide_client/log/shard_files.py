"""Find the shard records of versions in the files of the other ranks: seg-<epoch>-<rank>-<count>.log.

A shard record is the one with the checksum that the version record names; anything else counts as missing.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from springtide_client.errors import CorruptRecordError
from springtide_client.format.records import Head, Record, ShardEntry
from springtide_client.log.base import overlapping
from springtide_client.log.frames import Frame, frames
from springtide_client.log.listing import Listing
from springtide_client.rows.hash_range import ALL_KEYS, NO_KEYS, HashRange


@dataclass(frozen=True)
class ShardChoice:
    """The choice of one reader. `counts_all`: it also asks how often keys of other parts were counted."""

    hash_range: HashRange = ALL_KEYS
    counts_all: bool = False

    @staticmethod
    def parse(text: str) -> "ShardChoice":
        """Return the choice that `str` gives; ValueError for another text."""
        return FOR_ASKING if text == NO_ROWS else ShardChoice(HashRange.parse(text))

    def __str__(self) -> str:
        return NO_ROWS if self.hash_range.is_empty else str(self.hash_range)

    @property
    def is_all(self) -> bool:
        """True if nothing is ever left out."""
        return self.hash_range.is_all

    def needed(self, record: Record) -> tuple[ShardEntry, ...]:
        """Return the shard records that are needed, in the order of the version's list. LogError as `shard_entries`."""
        entries = record.shard_entries
        num_ranks = 1 + len(entries)
        if not entries or self.is_all or not self._may_choose(record, num_ranks):
            return entries
        ranks = overlapping(num_ranks, self.hash_range)
        return tuple(entry for entry in entries if entry.rank in ranks)

    def cut(self, record: Record) -> Record:
        """Return a version with the needed shard records only."""
        if self.is_all or len(needed := self.needed(record)) == len(record.shards):
            return record
        return record.with_shards([record.shards[record.shard_entries.index(entry)] for entry in needed], needed)

    def _may_choose(self, record: Record, num_ranks: int) -> bool:
        """Return True if the others have no counts of keys without a row that this reader asks for.

        Counts are kept in blocks of many keys: those at a border may be of two ranks.
        """
        blocks = record.meta.sketch_blocks
        return not blocks or (not self.counts_all and blocks % num_ranks == 0)


NO_ROWS = "none"
EVERY_SHARD = ShardChoice()
FOR_ASKING = ShardChoice(NO_KEYS, counts_all=True)  # of who holds no rows, and asks those who do


class ShardFiles:
    """The shard records in a log's folder. It remembers where it was, so reading in order is cheap. Not thread-safe."""

    def __init__(self, path: Path, limits: Mapping[str, int] | None = None) -> None:
        """`limits`: so many bytes of each file count, and none of a file that is not named; None: all that is there."""
        self._path, self._limits = path, limits
        self._names: dict[tuple[int, int], list[str]] = {}
        self._last: dict[tuple[int, int], tuple[Head, str, int]] = {}  # the newest found, its file and offset
        self._damage = ""  # a header that the newest search could not read

    def complete(self, record: Record, choice: ShardChoice = EVERY_SHARD) -> Record | None:
        """Return a version record with its shard records; None if one is missing, which may not be in sight yet.

        Of those that `choice` does not need, only the headers are read: a version is there for all readers or for none.
        CorruptRecordError if one is there and damaged, and not again in a later file.
        """
        if not (entries := record.shard_entries):
            return record
        shards, needed = [], choice.needed(record)
        for entry in entries:
            if entry not in needed:
                if self.find(record.epoch, record.number, entry) is None:
                    return None
                continue
            shard = self.read(record.epoch, record.number, entry)
            if shard is None:
                return None
            shards.append(shard)
        return record.with_shards(shards, needed)

    def find(self, epoch: int, number: int, entry: ShardEntry) -> Frame | None:
        """Return where a shard record is, without reading it; None if it is missing."""
        return next(self._places(epoch, number, entry), None)

    def read(self, epoch: int, number: int, entry: ShardEntry) -> Record | None:
        """Return a shard record; None if it is missing, CorruptRecordError if it is damaged."""
        damage = ""
        for place in self._places(epoch, number, entry):
            try:
                return place.read()
            except CorruptRecordError as error:
                damage = f"{place.path.name} at byte {place.offset:,}: {error}"
            except FileNotFoundError:  # retention deleted it since
                continue
        if damage := damage or self._damage:
            raise CorruptRecordError(f"the shard record of rank {entry.rank} is damaged: {damage}")
        return None

    def _places(self, epoch: int, number: int, entry: ShardEntry) -> Iterator[Frame]:
        """Yield the places whose header is that of the shard record: more than one after a failed append.

        First in the files known, then in those that a new listing shows.
        """
        key, head = (epoch, entry.rank), Head(number, entry.checksum)
        for is_new in (False, True):
            if is_new:
                self._names = self._list()
            self._damage = ""
            for place in self._search(key, head):
                self._last[key] = head, place.path.name, place.offset
                yield place

    def _search(self, key: tuple[int, int], head: Head) -> Iterator[Frame]:
        names = self._names.get(key, [])
        start, offset = 0, 0
        if (last := self._last.get(key)) is not None and last[0].number <= head.number and last[1] in names:
            start, offset = names.index(last[1]), last[2]
        else:
            start = self._first_file(names, head.number)
        for name in names[start:]:
            for frame in self._frames(name, offset):
                if frame.header.number > head.number:
                    return
                if frame.header.head == head:
                    yield frame
            offset = 0

    def _first_file(self, names: list[str], number: int) -> int:
        """Return the index of the last file that begins before a version: it holds the version, or a later one does."""
        for index in reversed(range(len(names))):
            first = next(self._frames(names[index]), None)
            if first is not None and first.header.number < number:
                return index
        return 0

    def _frames(self, name: str, offset: int = 0) -> Iterator[Frame]:
        """Yield each whole record of a file from an offset on; remember a header that cannot be read."""
        limit = None if self._limits is None else self._limits.get(name, 0)
        try:
            for frame in frames(self._path / name, limit, offset):
                yield frame
                offset = frame.end
        except CorruptRecordError as error:
            self._damage = f"{name} at byte {offset:,}: {error}"

    def _list(self) -> dict[tuple[int, int], list[str]]:
        try:
            return Listing.of(os.listdir(self._path)).shards
        except FileNotFoundError:
            return {}
