"""Lets go of spilled rows once a base of the log covers them: the spill's generations, and the base that is read.

One closed generation at a time waits for its base; the next one closes at the first cut after that.
"""

import logging
from typing import Protocol

from springtide_client.errors import LogError
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_number

from app.training.state.base_rows import BaseRows
from app.version_log.failpoints import failpoint
from embeddings.tiers.interface import RowSource

NO_GENERATION = -1

logger = logging.getLogger(__name__)


class SpillTable(Protocol):
    """What is asked of the table."""

    def open_generation(self) -> int: ...

    def map_base(self, base: RowSource, generation: int) -> None: ...


class SpillGC:
    """Opens generations at cuts, and maps the merger's bases."""

    def __init__(self, table: SpillTable, directory: LogDirectory, mapped: int) -> None:
        """`mapped`: the number of the base that the table reads."""
        self._table, self._directory, self._mapped = table, directory, mapped
        self._closed: tuple[int, int] | None = None  # a generation, and the version of the cut that closed it

    def on_checkpoint(self, version: int) -> None:
        """Right after the cut of this version, before anything can leave memory again."""
        if self._closed is None:
            self._closed = self._table.open_generation(), version

    def map_newest_base(self, newest: int) -> bool:
        """Map the newest base, if there is one at or before the version `newest`, in place of an older one."""
        path = self._directory.newest_base()
        if path is None or not self._mapped < base_number(path) <= newest:
            return False
        try:
            base = Base.open(path)
        except LogError as error:
            logger.warning("a base cannot be mapped", extra={"base": path.name, "reason": str(error)})
            return False
        number = base.tip.number
        generation = NO_GENERATION
        if self._closed is not None and self._closed[1] <= number:
            generation = self._closed[0]
            self._closed = None
        failpoint("before a base is mapped")
        self._table.map_base(BaseRows(base), generation)
        failpoint("while a generation is destroyed")
        self._mapped = number
        logger.info("base mapped", extra={"base": path.name, "generation": generation})
        return True
