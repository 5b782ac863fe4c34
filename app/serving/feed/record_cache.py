"""The newest records as this server's own follower read them: what a thousand followers wait for is read once."""

import threading
from collections import OrderedDict

from springtide_client.format.records import Record, Tip

MAX_BYTES = 32 << 20


class RecordCache:
    """Records by their parents, the newest so many bytes of them. One thread adds, any may ask."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._by_parent: OrderedDict[int, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Keep a record that was read by the rules for readers; the oldest go."""
        with self._lock:
            if (same := self._by_parent.pop(record.parent, None)) is not None:
                self._num_bytes -= same.num_bytes
            self._by_parent[record.parent] = record
            self._num_bytes += record.num_bytes
            while self._num_bytes > self._max_bytes:
                _, oldest = self._by_parent.popitem(last=False)
                self._num_bytes -= oldest.num_bytes

    def after(self, tip: Tip, limit_bytes: int) -> list[Record]:
        """The records that follow a version, about `limit_bytes` of them; none where the first is not among these."""
        found: list[Record] = []
        with self._lock:
            while limit_bytes > 0 and (record := self._by_parent.get(tip.checksum)) is not None:
                if record.number <= tip.number:
                    break
                found.append(record)
                tip, limit_bytes = record.tip, limit_bytes - record.num_bytes
        return found
