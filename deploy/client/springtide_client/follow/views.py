"""The views of a follower: opened from bases, kept within a memory limit, freed once they are replaced."""

import logging
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.follow.log_source import LogSource
from springtide_client.log.listing import base_number
from springtide_client.model.view import View
from springtide_client.rows.disk_layer import write_disk_layer
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.layers import LayerMerge, merge_layers
from springtide_client.rows.search import SearchFactory
from springtide_client.wide.score import WideSteps

DISK_BYTES = 20 << 30


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """A limit on the memory of each view, and on the disk space that rows moved out of memory may take."""

    memory_bytes: int
    disk_bytes: int = DISK_BYTES  # of one view's files; while the next ones are written there are two of each
    folder: Path | None = None  # for the files; None: the system's temporary folder

    def is_exceeded_by(self, view: View) -> bool:
        """Return True if the view takes more memory than allowed."""
        return view.num_bytes > self.memory_bytes

    def apply(self, view: View) -> View:
        """Return the same version within the limit: if it exceeds it, the layers of each table become one mapped file.

        LogError when dense parameters and counts alone are too large, or the file would be; OSError when the disk is
        full.
        """
        if not self.is_exceeded_by(view):
            return view
        if view.fixed_bytes > self.memory_bytes:
            needed = 2 * view.fixed_bytes
            what = "the dense parameters" + (" and the admission sketch" if view.admission_counts.num_bytes else "")
            raise LogError(f"{what} do not fit into cache_bytes: give more than {needed:,}")
        tables, left = dict(view.tables), self.disk_bytes
        for name, table in view.tables.items():
            if table.layers:
                disk_layer = write_disk_layer(table.changed_layers, table.dim, self.folder, max_bytes=left)
                tables[name] = replace(table, layers=(), disk_layer=disk_layer)
            if (on_disk := tables[name].disk_layer) is not None:
                left -= on_disk.num_bytes
        return replace(view, tables=tables)


# of a view that nothing but the list holds: the list's, and the one that `getrefcount` is called with
UNUSED_REFERENCES = 2


class RetiredViews:
    """Keeps replaced views until no call uses them. Not thread-safe: for the thread that advances the follower.

    A call keeps the view it began with. If its reference were the last one, the call would free the view's rows and
    unmap its base when it ends, which takes ms where they are large.
    """

    def __init__(self) -> None:
        self._views: list[View] = []

    def __len__(self) -> int:
        return len(self._views)

    def add(self, view: View) -> None:
        """Take a view that is not served any more."""
        self._views.append(view)

    def free_unused(self) -> None:
        """Free the views that no call uses, and no caller of this method."""
        for index in range(len(self._views) - 1, -1, -1):
            if sys.getrefcount(self._views[index]) <= UNUSED_REFERENCES:
                del self._views[index]


# from this many changed rows on a newer base is looked for, at most this often
REBASE_ROWS, REBASE_SECONDS = 200_000, 5.0

logger = logging.getLogger(__name__)


class BaseOpener:
    """Opens bases of one log as views; programs of `like` are reused."""

    def __init__(
        self,
        source: LogSource,
        limit: MemoryLimit,
        search_factory: SearchFactory,
        wide_steps: WideSteps,
        hash_range: HashRange = ALL_KEYS,
        merge: LayerMerge = merge_layers,
    ) -> None:
        self._source, self._limit = source, limit
        self._search_factory, self._wide_steps = search_factory, wide_steps
        self._hash_range, self._merge = hash_range, merge
        self._next_rebase = 0.0
        self.has_base: bool | None = None

    def open_newest(self, like: View | None) -> View | None:
        """Open the newest base, or if it is corrupt the newest older one: the log's records follow any of them.

        None in a log without a base; LogError when every base is corrupt.
        """
        base_path = self._source.newest_base()
        self.has_base = base_path is not None
        if base_path is None:
            return None
        try:
            return self._open(base_path, like)
        except LogError as error:
            for older in self._source.bases_before(base_path):
                with suppress(LogError):
                    view = self._open(older, like)
                    logger.warning("starting from an older base: %s", error)
                    return view
            raise

    def open_newer(self, served: View) -> View | None:
        """Open a newer base than the served view's, if that view holds many changed rows; None otherwise."""
        is_large = served.num_changed_rows >= REBASE_ROWS or 2 * served.num_bytes > self._limit.memory_bytes
        if not is_large or time.monotonic() < self._next_rebase:
            return None
        self._next_rebase = time.monotonic() + REBASE_SECONDS
        base_path = self._source.local_base()
        if base_path is None or base_number(base_path) <= served.base.manifest.number:
            return None
        if base_number(base_path) > served.version and not self._limit.is_exceeded_by(served):
            return None  # the versions up to it arrive as records, and listeners hear of each
        return self._open(base_path, served)

    def _open(self, path: Path, like: View | None) -> View:
        return View.open(path, like, self._search_factory, self._wide_steps, self._hash_range, self._merge)
