"""Frees the spill: rows that a base of the log covers are destroyed, a whole generation of the spill at a time.

One closed generation waits for its base; the next one is closed at the first checkpoint after that.
"""

# U unique keys, M of a part of them
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from springtide.app.version_log.failpoints import failpoint
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.interface import RowSource
from springtide.embeddings.tiers.record_kinds import IN_BASE
from springtide.kernels.cpu.rows import base_file_rows
from springtide.kernels.cpu.store.readahead import Readahead
from springtide_client.errors import LogError
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_number
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.table_names import MAIN_TABLE

NO_GENERATION = -1

logger = logging.getLogger(__name__)


class SpillTable(Protocol):
    """The table as the garbage collection needs it."""

    def open_generation(self) -> int:
        """Start a new generation; returns the one that is closed by it."""
        ...

    def map_base(self, base: RowSource, generation: int) -> None:
        """Read the lowest tier from this base, and destroy the generations up to this one."""
        ...


class SpillGC:
    """Opens generations at checkpoints, and maps the compactor's bases into the table."""

    def __init__(
        self,
        tables: Mapping[str, SpillTable],
        directory: LogDirectory,
        mapped: int,
        *,
        on_mapped: Callable[[Base], None] = lambda base: None,
    ) -> None:
        """`tables` by name. `mapped`: the number of the base that they read now. `on_mapped` is called with each newer
        one.
        """
        self._tables, self._directory, self._mapped, self._on_mapped = tables, directory, mapped, on_mapped
        self._refused: set[str] = set()  # the bases that could not be mapped
        # a generation of each table, and the version whose checkpoint closed it
        self._closed: tuple[dict[str, int], int] | None = None

    def on_checkpoint(self, version: int) -> None:
        """Call it right after the checkpoint of this version, before another row can be evicted."""
        if self._closed is None:
            self._closed = {name: table.open_generation() for name, table in self._tables.items()}, version

    def map_newest_base(self, newest: int) -> bool:
        """Map the newest base, if it is newer than the mapped one and holds no version after `newest`."""
        path = self._directory.newest_base()
        if path is None or not self._mapped < base_number(path) <= newest:
            return False
        try:
            base = Base.open(path)
        except LogError as error:
            if path.name not in self._refused:
                self._refused.add(path.name)
                logger.warning("a base cannot be mapped", extra={"base": path.name, "reason": str(error)})
            return False
        number = base.head.number
        generations = dict.fromkeys(self._tables, NO_GENERATION)
        if self._closed is not None and self._closed[1] <= number:
            generations = self._closed[0]
            self._closed = None
        failpoint("before a base is mapped")
        for name, table in self._tables.items():
            table.map_base(BaseRows(base, name), generations[name])
        failpoint("while a generation is destroyed")
        self._mapped = number
        self._on_mapped(base)
        logger.info("base mapped", extra={"base": path.name, "generation": generations[MAIN_TABLE]})
        return True


CHUNK_KEYS = 256
NEAR_ROWS = 96  # a guess that was corrected by one look is seldom farther off


class BaseRows:
    """A RowSource over a mapped base. Searches and reads without the GIL: fetches run beside the learning."""

    def __init__(self, base: Base, table: str = MAIN_TABLE) -> None:
        self.base, self.rows = base, base.tables[table].layer
        base.advise_random_access()
        self._readahead = Readahead()

    def keys(self) -> tuple[UInt16Array, Int64Array]:
        """Return the features and ids of all rows, mapped."""
        return self.rows.feature, self.rows.id

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        """Find and copy rows; from the disk in the order of their keys, so that neighbours share pages."""
        found = FoundRows.nothing(features_U, ids_U, self.rows.dim, self.rows.state.shape[1])
        before = self._readahead.num_pages_read()
        if self._readahead.is_worthwhile and len(self.rows):
            order = np.argsort(found.rows.key_hash)
            in_order = FoundRows.nothing(features_U[order], ids_U[order], self.rows.dim, self.rows.state.shape[1])
            self._find_on_disk(in_order)
            found.put_found(order, in_order)
        else:
            part = _Part(self.rows, found, slice(None), self._readahead)
            part.find()
            part.copy()
        self._readahead.observe(self._readahead.num_pages_read() - before, len(ids_U))
        return found

    def _find_on_disk(self, found: FoundRows) -> None:
        """Take the keys in parts through four steps, each of which requests the pages that the next one reads.

        While a part waits for its pages, the parts around it take their steps: 256 keys in each, of whose pages, seven
        a key at most, those of three parts must stay cached, 20 MiB.
        """
        starts = range(0, len(found.kinds_U), CHUNK_KEYS)
        parts = [_Part(self.rows, found, slice(start, start + CHUNK_KEYS), self._readahead) for start in starts]
        steps = _Part.guess, _Part.look, _Part.find, _Part.copy
        for n in range(len(parts) + len(steps) - 1):
            for behind, step in enumerate(steps):
                if 0 <= n - behind < len(parts):
                    step(parts[n - behind])


class _Part:
    """Some keys of a search, and what is known of their places."""

    def __init__(self, rows: RowBlock, found: FoundRows, part: slice, readahead: Readahead) -> None:
        self._rows, self._out, self._kinds_M = rows, found.rows.take(part), found.kinds_U[part]
        self._readahead = readahead
        self._places_M = self._rows_M = np.empty(0, np.int64)

    def guess(self) -> None:
        self._places_M = base_file_rows.interpolate_all(len(self._rows), self._out.key_hash)
        self._readahead.request(self._rows.key_hash, self._places_M)

    def look(self) -> None:
        rows = self._rows
        places_M = base_file_rows.refine_places(rows.key_hash, self._places_M, self._out.key_hash)
        for column in (rows.key_hash, rows.feature):
            self._readahead.request(column, np.maximum(places_M - NEAR_ROWS, 0), 2 * NEAR_ROWS)

    def find(self) -> None:
        rows, out = self._rows, self._out
        self._rows_M = base_file_rows.find_rows(rows.key_hash, rows.feature, out.key_hash, out.feature)
        self._kinds_M[self._rows_M >= 0] = IN_BASE
        for column in rows.contents:
            self._readahead.request(column, self._rows_M[self._rows_M >= 0])

    def copy(self) -> None:
        base_file_rows.copy_rows(*self._rows.contents, self._rows_M, *self._out.contents)
