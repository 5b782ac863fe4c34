"""The mapped tables of one database that RocksDB, in another process, writes and compacts meanwhile.

A key is read here only if no write of it can be missing from the table files: the keys of younger writes, which
RocksDB has in memory, are known. What is not understood here is asked of RocksDB.
"""

# N keys, U unique keys, M some of them, T tables, R runs, C columns
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import BoolArray, Int64Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE
from springtide.embeddings.tiers.rocksdb.table_files import LiveFile, Manifest, TableFile, UnknownFormatError
from springtide.kernels.cpu import bloom_filter
from springtide.kernels.cpu.store.readahead import Readahead
from springtide.kernels.cpu.table_file import blocks, find

UInt64Array = npt.NDArray[np.uint64]
LINE = 64
FIRST_KEYS = 1 << 15
GROWTH = 4


class KeyFilter:
    """Bloom filters of 2 bytes a key; each passes at most 0.2 % of absent keys. When full, a larger one is added.

    One thread may add while others look up: a key is found once `add` has returned.
    """

    def __init__(self, num_keys: int = FIRST_KEYS) -> None:
        """`num_keys`: how many keys the first filter has room for."""
        self._parts: tuple[UInt64Array, ...] = ()
        self._room = 0  # keys that still fit into the newest part
        self._next_keys = max(FIRST_KEYS, num_keys)

    def add(self, key_hash_N: UInt64Array) -> None:
        key_hash_N = key_hash_N[~self.contains(key_hash_N)]
        while len(key_hash_N):
            if self._room <= 0:
                self._grow()
            now, key_hash_N = key_hash_N[: self._room], key_hash_N[self._room :]
            self._room -= int(bloom_filter.add(self._parts[-1], now))

    def contains(self, key_hash_N: UInt64Array) -> BoolArray:
        """Which keys may have been added; false means certainly not."""
        maybe_N = np.zeros(len(key_hash_N), np.bool_)
        for words in reversed(self._parts):
            maybe_N |= bloom_filter.contains(words, key_hash_N)
        return maybe_N

    def num_bytes(self) -> int:
        return sum(words.nbytes for words in self._parts)

    def _grow(self) -> None:
        num_blocks = -(-self._next_keys // bloom_filter.KEYS_A_BLOCK)
        num_words = num_blocks * bloom_filter.BLOCK_WORDS
        raw = np.zeros(num_words + LINE // 8, np.uint64)
        start = -raw.ctypes.data % LINE // 8
        self._parts = (*self._parts, raw[start : start + num_words])
        self._room, self._next_keys = self._next_keys, self._next_keys * GROWTH


@dataclass(eq=False)
class _Segment:
    keys: KeyFilter = field(default_factory=KeyFilter)
    num_keys: int = 0
    sequence: int | None = None  # of its last write; None while that is not known


class RecentKeys:
    """Filters of the keys written last, each forgotten when a table file holds all of its writes."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def add(self, key_hash_N: UInt64Array) -> None:
        """Add keys before they are written."""
        if not self._segments or self._segments[-1].num_keys >= FIRST_KEYS:
            self._segments.append(_Segment())
        segment = self._segments[-1]
        segment.sequence = None
        segment.keys.add(key_hash_N)
        segment.num_keys += len(key_hash_N)

    def written(self, sequence: int) -> None:
        """Note that everything added so far has been written, up to this sequence number."""
        for segment in self._segments:
            if segment.sequence is None:
                segment.sequence = sequence

    def forget(self, sequence: int) -> None:
        """Forget the keys whose writes end at or before this sequence number."""
        self._segments = [s for s in self._segments if s.sequence is None or s.sequence > sequence]

    def filters(self) -> tuple[KeyFilter, ...]:
        """A snapshot: it keeps what is forgotten later."""
        return tuple(segment.keys for segment in self._segments)

    def num_bytes(self) -> int:
        return sum(segment.keys.num_bytes() for segment in self._segments)


def contains_any(filters: tuple[KeyFilter, ...], key_hash_N: UInt64Array) -> BoolArray:
    """Which keys one of the filters may have."""
    found_N = np.zeros(len(key_hash_N), np.bool_)
    for keys in filters:
        found_N |= keys.contains(key_hash_N)
    return found_N


logger = logging.getLogger(__name__)

CHUNK_KEYS = 512  # their blocks, of two pages each, must stay cached until they are read
MAX_TRIES = 16


class MappedTables:
    """One consistent set of tables. They stay mapped as long as it lives."""

    def __init__(self, tables: dict[int, TableFile], files: list[LiveFile]) -> None:
        self.tables = tables
        newest_first = sorted((f for f in files if f.level == 0), key=lambda f: (-f.epoch, -f.largest_sequence))
        deeper = sorted((f for f in files if f.level > 0), key=lambda f: (f.level, f.smallest))
        order = [tables[file.number] for file in newest_first + deeper]
        levels = [file.level for file in deeper]
        starts = [n for n, level in enumerate(levels) if n == 0 or level != levels[n - 1]]
        num_newest = len(newest_first)
        self.runs_R1 = np.array([*range(num_newest), *(num_newest + n for n in starts), len(order)], np.int64)
        self.table_TC = np.array([table.columns for table in order], np.int64).reshape(-1, find.NUM_COLUMNS)
        self.smallest_T = np.array([table.smallest for table in order], np.uint64)
        self.largest_T = np.array([table.largest for table in order], np.uint64)

    def read_ahead(
        self,
        key_hash_M: UInt64Array,
        features_M: npt.NDArray[np.uint16],
        first_runs_M: Int64Array,
        readahead: Readahead,
    ) -> None:
        """Request the blocks that `find` reads first for these keys, without waiting for them."""
        starts_M, sizes_M = np.empty(len(key_hash_M), np.int64), np.empty(len(key_hash_M), np.int64)
        find.locate_all(*self._arrays(), key_hash_M, features_M, first_runs_M, starts_M, sizes_M)
        readahead.request_ranges(starts_M[sizes_M > 0], sizes_M[sizes_M > 0])

    def find(
        self,
        key_hash_M: UInt64Array,
        features_M: npt.NDArray[np.uint16],
        first_runs_M: Int64Array,
        *,
        one_block: bool = False,
    ) -> tuple[npt.NDArray[np.uint8], Int64Array, Int64Array]:
        """Return for each key NOT_FOUND, FOUND or UNSURE, and the address and the length of its value.

        With `one_block` also LATER, where a second block must be read: `first_runs_M` then says from where on to look.
        """
        num = len(key_hash_M)
        kinds_M, values_M, lengths_M = np.empty(num, np.uint8), np.zeros(num, np.int64), np.zeros(num, np.int64)
        find.find_all(*self._arrays(), key_hash_M, features_M, first_runs_M, one_block, kinds_M, values_M, lengths_M)
        return kinds_M, values_M, lengths_M

    def _arrays(self) -> tuple[Int64Array, UInt64Array, UInt64Array, Int64Array]:
        return self.table_TC, self.smallest_T, self.largest_T, self.runs_R1


class LiveTables:
    """Any thread may read. `add`, `written` and `refresh` belong to the thread that writes."""

    def __init__(
        self, folder: Path, record_bytes: int, *, on_unknown_format: Callable[[str], None] = lambda why: None
    ) -> None:
        """`folder` need not exist yet. `on_unknown_format`: called once if RocksDB writes what is not read here."""
        self.folder, self.record_bytes, self._on_unknown_format = folder, record_bytes, on_unknown_format
        self.is_disabled = False
        self._lock = threading.Lock()
        self._manifest: Manifest | None = None
        self._is_stale = False  # the MANIFEST has changed since the view was made
        self._view = MappedTables({}, [])
        self._recent = RecentKeys()
        self._readahead = Readahead()

    def add(self, key_hash_N: UInt64Array) -> None:
        """Add keys before they are written, or before others look for them here."""
        with self._lock:
            if not self.is_disabled:
                self._recent.add(key_hash_N)

    def written(self, sequence: int | None) -> None:
        """Note that RocksDB has written up to this sequence number; None = unknown: it is asked from now on."""
        if sequence is None:
            self.disable("the sequence number of its writes is unknown")
            return
        with self._lock:
            self._recent.written(sequence)
        self._snapshot()

    def split(self, key_hash_U: UInt64Array, chosen: Int64Array) -> tuple[MappedTables, Int64Array, Int64Array]:
        """The tables as they are now, and of these positions those to read from them, and those to ask RocksDB for."""
        snapshot = self._snapshot()
        if snapshot is None:
            return self._view, chosen[:0], chosen
        view, recent = snapshot
        is_recent_M = contains_any(recent, key_hash_U[chosen])
        return view, chosen[~is_recent_M], chosen[is_recent_M]

    def read(self, view: MappedTables, here: Int64Array, found: FoundRows) -> Int64Array:
        """Read the keys at these positions into `found`. Return the positions that RocksDB must be asked for."""
        if not len(here):
            return here
        num_keys, before = len(here), self._readahead.num_pages_read()
        unsure, first_runs = [], np.zeros(num_keys, np.int64)
        # from the disk a round reads one block of each key: a second one, read at once, would wait behind all others
        while len(here):
            kinds = self._read_round(view, here, first_runs, found)
            unsure.append(here[kinds == blocks.UNSURE])
            here, first_runs = here[kinds == find.LATER], first_runs[kinds == find.LATER]
        self._readahead.observe(self._readahead.num_pages_read() - before, num_keys)
        return np.concatenate(unsure)

    def _read_round(
        self, view: MappedTables, here: Int64Array, first_runs: Int64Array, found: FoundRows
    ) -> npt.NDArray[np.uint8]:
        """Read the keys at these positions, or where rows come from the disk a block of each. Return their kinds."""
        from_disk, rows, kinds = self._readahead.is_worthwhile, found.rows, np.empty(len(here), np.uint8)
        step = CHUNK_KEYS if from_disk else len(here)
        parts = [slice(start, start + step) for start in range(0, len(here), step)]
        # the blocks of a part are under way while the part before is read
        for n, part in enumerate(parts):
            for ahead in parts[n + (n > 0) : n + 2] if from_disk else ():
                keys = rows.key_hash[here[ahead]], rows.feature[here[ahead]]
                view.read_ahead(*keys, first_runs[ahead], self._readahead)
            kinds[part] = self._read_part(view, here[part], first_runs[part], found, one_block=from_disk)
        return kinds

    def _read_part(
        self, view: MappedTables, part: Int64Array, first_runs_M: Int64Array, found: FoundRows, *, one_block: bool
    ) -> npt.NDArray[np.uint8]:
        """Find and copy at once: a page may be dropped from the cache soon after it was read. Return the kinds."""
        rows, kinds_U = found.rows, found.kinds_U
        keys = rows.key_hash[part], rows.feature[part]
        kinds_M, values_M, lengths_M = view.find(*keys, first_runs_M, one_block=one_block)
        is_row_M = (kinds_M == blocks.FOUND) & (lengths_M == self.record_bytes)
        is_tombstone_M = (kinds_M == blocks.FOUND) & (lengths_M == 0)
        is_absent_M = kinds_M == blocks.NOT_FOUND
        kinds_U[part[is_row_M]], kinds_U[part[is_tombstone_M]], kinds_U[part[is_absent_M]] = ROW, TOMBSTONE, ABSENT
        find.copy_rows(values_M[is_row_M], part[is_row_M], rows.key_hash, *rows.contents)
        kinds_M[(kinds_M == blocks.FOUND) & ~(is_row_M | is_tombstone_M)] = blocks.UNSURE
        return kinds_M

    def num_bytes(self) -> int:
        """Bytes of memory: indexes, and filters of recent keys."""
        with self._lock:
            return self._recent.num_bytes() + sum(table.num_bytes() for table in self._view.tables.values())

    def disable(self, why: str) -> None:
        """Ask RocksDB for everything from now on."""
        with self._lock:
            self._disable(why)

    def _disable(self, why: str) -> None:
        if not self.is_disabled:
            logger.info("the spill's tables are not read directly", extra={"folder": str(self.folder), "reason": why})
        self.is_disabled = True
        self._manifest, self._view, self._recent = None, MappedTables({}, []), RecentKeys()

    def _snapshot(self) -> tuple[MappedTables, tuple[KeyFilter, ...]] | None:
        """The newest tables, and the keys that must not be read from them; None if none may."""
        with self._lock:
            if self.is_disabled:
                return None
            try:
                self._refresh()
            except UnknownFormatError as error:
                self._disable(str(error))
                self._on_unknown_format(str(error))
                return None
            except OSError as error:
                self._disable(str(error))
                return None
            return self._view, self._recent.filters()

    def _refresh(self) -> None:
        if self._manifest is None:
            if not (self.folder / "CURRENT").exists():
                return
            self._manifest = Manifest(self.folder)
        for _ in range(MAX_TRIES):
            self._is_stale |= self._manifest.refresh()
            if not self._is_stale:
                return
            files = list(self._manifest.files.values())
            known = self._view.tables
            try:
                tables = {f.number: known.get(f.number) or TableFile(self.folder, f) for f in files}
            except FileNotFoundError:
                continue  # compacted meanwhile: the MANIFEST says so
            self._view, self._is_stale = MappedTables(tables, files), False
            self._recent.forget(self._manifest.flushed_sequence)
            return
        raise UnknownFormatError("its table files vanish")
