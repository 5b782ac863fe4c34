"""The items that the log's versions brought, in order of version: views keep rows only.

The following thread adds, any thread may look up.
"""

import threading
from collections import deque
from functools import reduce

from springtide_client.format.records import Record
from springtide_client.log.base import Base

from app.version_log.item_columns import NO_ITEMS, ItemColumns
from app.version_log.items import items_of


class LiveItems:
    """Remembers the items of versions; those of older ones are in the base."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_version: deque[tuple[int, ItemColumns]] = deque()

    def add(self, record: Record) -> None:
        """Remember the items of a version."""
        if (items := items_of(record.tensors())) is not None:
            columns = ItemColumns.of(items)
            with self._lock:
                self._by_version.append((record.number, columns))

    def drop_through(self, number: int) -> None:
        """Forget the items of every version up to this one."""
        with self._lock:
            while self._by_version and self._by_version[0][0] <= number:
                self._by_version.popleft()

    def between(self, after: int, last: int) -> ItemColumns:
        """Return the items that the versions after one, up to another, have brought."""
        with self._lock:
            parts = [items for number, items in self._by_version if after < number <= last]
        return reduce(ItemColumns.merged, parts, NO_ITEMS)

    def at(self, base: Base, number: int) -> ItemColumns:
        """Return the items of a version over its base; some may have lost their rows."""
        return ItemColumns.of(base.items).merged(self.between(base.manifest.number, number))
