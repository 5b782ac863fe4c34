"""Which shard records of a version a reader of a part needs: those of the ranks whose keys it holds."""

from dataclasses import dataclass

from springtide_client.format.records import Record
from springtide_client.format.shards import ShardEntry
from springtide_client.log.row_files import overlapping
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
