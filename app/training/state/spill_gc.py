"""Frees the spill: rows that a base of the log covers are destroyed, a whole generation of the spill at a time.

One closed generation waits for its base; the next one is closed at the first checkpoint after that.
"""

# U unique keys, M some of them
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from springtide.app.version_log.failpoints import failpoint
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.interface import RowSource
from springtide.embeddings.tiers.record_kinds import IN_BASE
from springtide.kernels.cpu.rows import base_file_rows
from springtide.kernels.cpu.store.readahead import Readahead
from springtide_client.array_types import UInt8Array
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


CHUNK_KEYS = 512  # their pages, up to seven each, must stay cached until they are read: 14 MiB


class BaseRows:
    """A RowSource over a mapped base. Searches and reads without the GIL: fetches run beside the learning."""

    def __init__(self, base: Base, table: str = MAIN_TABLE) -> None:
        self.base, self.rows = base, base.tables[table].layer
        base.advise_random_access()
        self._readahead = Readahead()

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        """1. Find the keys' places; read pages ahead if they come from the disk. 2. Copy the rows."""
        found = FoundRows.nothing(features_U, ids_U, self.rows.dim, self.rows.state.shape[1])
        before = self._readahead.num_pages_read()
        step = CHUNK_KEYS if self._readahead.is_worthwhile else max(1, len(ids_U))
        for start in range(0, len(ids_U), step):
            part = slice(start, start + step)
            self._find(found.rows.take(part), found.kinds_U[part])
        self._readahead.observe(self._readahead.num_pages_read() - before, len(ids_U))
        return found

    def _find(self, out: RowBlock, kinds_M: UInt8Array) -> None:
        rows, key_hash_M, request = self.rows, out.key_hash, self._readahead.request
        if self._readahead.is_worthwhile and len(rows):
            places_M = base_file_rows.interpolate_all(len(rows), key_hash_M)
            request(rows.key_hash, places_M)
            places_M = base_file_rows.refine_places(rows.key_hash, places_M, key_hash_M)
            request(rows.key_hash, places_M)
            request(rows.feature, places_M)
        rows_M = base_file_rows.find_rows(rows.key_hash, rows.feature, key_hash_M, out.feature)
        kinds_M[rows_M >= 0] = IN_BASE
        for column in rows.contents:
            request(column, rows_M[rows_M >= 0])
        base_file_rows.copy_rows(*rows.contents, rows_M, *out.contents)
