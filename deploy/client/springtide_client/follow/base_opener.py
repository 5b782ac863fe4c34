"""Decides which base a follower opens, and when."""

import logging
import time
from contextlib import suppress
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.follow.log_source import LogSource
from springtide_client.follow.memory_limit import MemoryLimit
from springtide_client.log.listing import base_number
from springtide_client.model.view import View
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.search import SearchFactory
from springtide_client.wide.steps import WideSteps

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
    ) -> None:
        self._source, self._limit = source, limit
        self._search_factory, self._wide_steps = search_factory, wide_steps
        self._hash_range = hash_range
        self._next_rebase = 0.0

    def open_newest(self, like: View | None) -> View | None:
        """Open the newest base, or if it is corrupt the newest older one: the log's records follow any of them.

        None in a log without a base; LogError when every base is corrupt.
        """
        base_path = self._source.newest_base()
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
        return View.open(path, like, self._search_factory, self._wide_steps, self._hash_range)
