"""The newest records, as the server's own follower read them: read from disk once for any number of clients."""

import threading
from collections import OrderedDict

from springtide_client.format.records import Record, Tip

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

    def after(self, tip: Tip, limit_bytes: int) -> list[Record]:
        """About `limit_bytes` of the records that follow a version; empty if the first of them is not cached."""
        found: list[Record] = []
        with self._lock:
            while limit_bytes > 0 and (record := self._by_parent.get(tip.checksum)) is not None:
                if record.number <= tip.number:
                    break
                found.append(record)
                tip, limit_bytes = record.tip, limit_bytes - record.num_bytes
        return found
