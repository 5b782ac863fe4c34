"""The items that the log's versions brought, in order of version: views keep rows only.

The following thread adds, any thread may look up.
"""

import threading
from collections import deque

import numpy as np
from springtide_client.format.records import Record
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base

from app.version_log.items import items_of
from app.version_log.read.replay_state import newest_items


class LiveItems:
    """Remembers the items of versions; those of older ones are in the base."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_version: deque[tuple[int, Arrays]] = deque()

    def add(self, record: Record) -> None:
        """Remember the items of a version."""
        if (items := items_of(record.tensors())) is not None:
            copied = {name: np.array(array) for name, array in items.items()}
            with self._lock:
                self._by_version.append((record.number, copied))

    def drop_through(self, number: int) -> None:
        """Forget the items of every version up to this one."""
        with self._lock:
            while self._by_version and self._by_version[0][0] <= number:
                self._by_version.popleft()

    def between(self, after: int, last: int) -> Arrays | None:
        """Return the items that the versions after one, up to another, have brought; None if there are none."""
        with self._lock:
            parts = [items for number, items in self._by_version if after < number <= last]
        return newest_items(parts) if parts else None

    def at(self, base: Base, number: int) -> Arrays | None:
        """Return the items of a version over its base; some may have lost their rows. None if there are none."""
        parts = [base.items, self.between(base.manifest.number, number)]
        known = [part for part in parts if part is not None]
        return newest_items(known) if known else None
