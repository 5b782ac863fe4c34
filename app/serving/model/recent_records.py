"""What the newest records of a followed log have brought: strings, items, and the records themselves, for followers.

Views keep the rows alone. The following thread adds, any thread may look up.
"""

# K keys of one feature
import threading
from collections import OrderedDict, deque
from functools import reduce

import numpy as np

from springtide.app.version_log.items import NO_ITEMS, ItemColumns, items_of
from springtide.app.version_log.read.id_dictionary import decode_strings, id_strings_of, strings_of
from springtide_client.array_types import Int64Array
from springtide_client.format.records import Head, Record
from springtide_client.format.tensors import Arrays
from springtide_client.keys import hash_keys
from springtide_client.log.base import Base
from springtide_client.rows.hash_range import ALL_KEYS, HashRange


class LiveIdDictionary:
    """Remembers the strings that records bring, because views do not keep them; the rest is looked up in the base."""

    def __init__(self, hash_range: HashRange = ALL_KEYS) -> None:
        """Strings of keys outside of `hash_range` are left out."""
        self._hash_range = hash_range
        self._lock = threading.Lock()
        self._strings: dict[tuple[int, int], str] = {}
        self._by_version: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self._features: set[int] = set()

    def add(self, record: Record) -> None:
        """Remember the strings of a version."""
        columns = id_strings_of(record.tensors())
        if columns is None:
            return
        strings = decode_strings(columns["offsets"], columns["bytes"])
        keys = list(zip(columns["feature"].tolist(), columns["id"].tolist(), strict=True))
        features = {feature for feature, _ in keys}
        if not self._hash_range.is_all:
            held = np.flatnonzero(self._hash_range.holds(hash_keys(columns["feature"], columns["id"]))).tolist()
            keys, strings = [keys[place] for place in held], [strings[place] for place in held]
        with self._lock:
            new = [key for key in keys if key not in self._strings]
            self._strings.update(zip(keys, strings, strict=True))
            self._features.update(features)
            if new:
                self._by_version.append((record.number, new))

    def drop_through(self, base_number: int) -> None:
        """Forget the strings of every version up to a base: the base has them."""
        with self._lock:
            while self._by_version and self._by_version[0][0] <= base_number:
                for key in self._by_version.popleft()[1]:
                    self._strings.pop(key, None)

    def has_strings(self, base: Base, number: int) -> bool:
        """Return True if any id of the feature is the hash of a string."""
        if number in self._features:
            return True
        columns = base.id_strings
        if columns is None:
            return False
        first, end = np.searchsorted(columns["feature"], np.array([number, number + 1]))
        return bool(first < end)

    def find(self, base: Base, number: int, ids_K: Int64Array) -> list[str | None]:
        """The string of each id; None where the id is a number."""
        found = [self._strings.get((number, row_id)) for row_id in ids_K.tolist()]
        columns = base.id_strings
        missing = [place for place, string in enumerate(found) if string is None]
        if columns is not None and missing:
            features = np.full(len(missing), number, np.uint16)
            for place, string in zip(missing, strings_of(columns, features, ids_K[missing]), strict=True):
                found[place] = string
        return found


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
        return columns.take(np.flatnonzero(self._hash_range.holds(hash_keys(items["feature"], columns.ids_I))))


MAX_BYTES = 32 << 20


class RecordCache:
    """The newest records by the checksum of their parent, up to `max_bytes`. One thread adds, any thread may read."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._by_parent: OrderedDict[int, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Add a verified record; the oldest ones are dropped when the cache is full.

        One without all its shard records is not kept: each client needs others.
        """
        if record.num_left_out:
            return
        with self._lock:
            if (same := self._by_parent.pop(record.parent, None)) is not None:
                self._num_bytes -= same.num_bytes
            self._by_parent[record.parent] = record
            self._num_bytes += record.num_bytes
            while self._num_bytes > self._max_bytes:
                _, oldest = self._by_parent.popitem(last=False)
                self._num_bytes -= oldest.num_bytes

    def after(self, head: Head, limit_bytes: int) -> list[Record]:
        """About `limit_bytes` of the records that follow a version; empty if the first of them is not cached."""
        found: list[Record] = []
        with self._lock:
            while limit_bytes > 0 and (record := self._by_parent.get(head.checksum)) is not None:
                if record.number <= head.number:
                    break
                found.append(record)
                head, limit_bytes = record.head, limit_bytes - record.num_bytes
        return found
