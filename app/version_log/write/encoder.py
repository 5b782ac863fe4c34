"""Versions as a chain: each record names the checksum of the one before, so they are encoded in order."""

import threading
from dataclasses import dataclass, field

from springtide_client.format.records import Tip, VersionMeta, encode_pieces
from springtide_client.format.tensors import Arrays


@dataclass(eq=False)
class PendingRecord:
    """A version on its way to the disk; `tip` and `frame` once it is encoded."""

    number: int
    meta: VersionMeta
    tensors: Arrays
    tip: Tip | None = None
    frame: list[bytes | memoryview] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Of the arrays."""
        return sum(array.nbytes for array in self.tensors.values())


class RecordEncoder:
    """Encodes versions one after the other, whichever thread asks."""

    def __init__(self, epoch: int, last: Tip | None) -> None:
        self.last = last  # the newest that is encoded; None before a new log's first base
        self._epoch = epoch
        self._lock = threading.Lock()

    def encode(self, *versions: PendingRecord) -> Tip:
        """Give each its frame, unless it has one; those before the first are encoded. Returns the last's tip."""
        with self._lock:
            for version in versions:
                if version.tip is None:
                    assert self.last is not None
                    version.frame, checksum = encode_pieces(
                        self._epoch, version.number, self.last.checksum, version.meta, version.tensors
                    )
                    version.tip = self.last = Tip(version.number, checksum)
        assert version.tip is not None
        return version.tip
