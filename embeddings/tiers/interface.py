"""Tiers below a table's memory: a spill, which it writes and reads, and a base, which it reads."""

# U unique keys, N rows, D dimension, S optimizer state width
from typing import TYPE_CHECKING, Protocol

from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide_client.rows.row_block import RowBlock

if TYPE_CHECKING:
    from springtide.embeddings.tiers.host_tier import HostTier


class Spill(Protocol):
    """Rows evicted from memory. A find sees every write that was made before it, also those not yet on disk.

    Several threads may find at the same time, beside one thread that writes. SpillError if the disk fails for longer
    than the spill's patience; queued rows are kept, and a later call succeeds once the disk works again.
    """

    keeps_rows: bool  # False: rows that are written are lost
    is_exclusive: bool  # True: a row that is in memory has no copy here (see HostTier)

    @property
    def host_tier(self) -> "HostTier | None":
        """This spill, if it keeps rows in RAM above another."""
        ...

    def write(self, rows: RowBlock, num_new: int) -> None:
        """Store copies of these rows in the newest generation. May wait until the queue has room.

        `num_new`: how many of them the spill has no row of, as far as the caller knows.
        """
        ...

    def has_room(self, num_rows: int, wait_seconds: float = 0.0) -> bool:
        """Return True if so many rows could be written now, or within this time: their write would not wait."""
        ...

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Store in the newest generation that these keys were forgotten."""
        ...

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows: ...

    def is_empty_for(self, num_keys: int) -> bool:
        """Return True if there is neither a row nor a tombstone: a find of so many keys is counted, and not needed."""
        ...

    def read_all(self) -> RowBlock:
        """Every row that a find would return, once."""
        ...

    def open_generation(self) -> int:
        """Start a new generation. Return the number of the one that it closes."""
        ...

    def destroy_generations(self, upto: int) -> None:
        """Delete the generations up to this number, once no find reads them: a base has their rows."""
        ...

    def purge(self, cutoffs: dict[int, int]) -> None:
        """Delete, in the background, rows of these features last seen before their cutoff. Finds may return them still.

        A database is rewritten once a sixteenth of what was written to it has expired.
        """
        ...

    def report_purged(self, reports: bool) -> None:
        """Collect the keys for `take_purged` from now on, or stop to."""
        ...

    def take_purged(self) -> tuple[UInt16Array, Int64Array]:
        """The keys of rows deleted because they had expired, since the last call; some of them may be here again."""
        ...

    def set_limit(self, num_bytes: int) -> None:
        """Keep the folder within this many bytes: free space when it runs short, and let writes wait meanwhile."""
        ...

    def fraction_to_forget(self) -> float:
        """The fraction of the stored rows that must expire so that the spill keeps its limit; 0 if none need to.

        Reads no file: fast enough for every batch.
        """
        ...

    def stall_reason(self) -> str:
        """Why a caller has been waiting for more than a second; empty if none has. Any thread; returns at once."""
        ...

    def last_seen_quantile(self, fraction: float) -> int | None:
        """A last-seen below which about this fraction of the stored rows lies; None without rows."""
        ...

    def num_rows(self) -> int:
        """About how many rows are stored; a forgotten one counts until its generation is deleted."""
        ...

    def num_bytes(self) -> int:
        """Bytes on disk and in the queue. Reads the size of every file: too slow for every batch."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of memory, without the queue."""
        ...

    def counters(self) -> dict[str, int]:
        """Counts since the spill was opened, by name."""
        ...

    def close(self) -> None: ...


class RowSource(Protocol):
    """The rows of a base of the log, read by key."""

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        """The keys' rows: of kind IN_BASE, or ABSENT."""
        ...

    def keys(self) -> tuple[UInt16Array, Int64Array]:
        """Return the features and ids of all rows."""
        ...
