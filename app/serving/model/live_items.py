"""The items that the log's versions brought, in order of version: views keep rows only.

The following thread adds, any thread may look up.
"""

import threading
from collections import deque
from functools import reduce

import numpy as np

from springtide.app.version_log.item_columns import NO_ITEMS, ItemColumns
from springtide.app.version_log.items import items_of
from springtide_client.format.records import Record
from springtide_client.format.tensors import Arrays
from springtide_client.keys import mix_keys
from springtide_client.log.base import Base
from springtide_client.rows.hash_range import ALL_KEYS, HashRange


class LiveItems:
    """Remembers the items of versions; those of older ones are in the base."""

    def __init__(self, hash_range: HashRange = ALL_KEYS) -> None:
        """Items whose rows are outside of `hash_range` are left out."""
        self._hash_range = hash_range
        self._lock = threading.Lock()
        self._by_version: deque[tuple[int, ItemColumns]] = deque()

    def add(self, record: Record) -> None:
        """Remember the items of a version."""
        if (items := items_of(record.tensors())) is not None:
            columns = self._held(items)
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
        return self.of(base).merged(self.between(base.manifest.number, number))

    def of(self, base: Base) -> ItemColumns:
        """Return the items of a base."""
        return self._held(base.items)

    def _held(self, items: Arrays | None) -> ItemColumns:
        columns = ItemColumns.of(items)
        if items is None or self._hash_range.is_all:
            return columns
        return columns.take(np.flatnonzero(self._hash_range.holds(mix_keys(items["feature"], columns.ids_I))))
