"""Encode versions as records in order: each record names the checksum of the record before it, its parent."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from springtide_client.format.records import Tip, VersionMeta, encode_pieces, encode_shard_pieces
from springtide_client.format.shards import ShardEntry
from springtide_client.format.tensors import Arrays


@dataclass(eq=False)
class PendingRecord:
    """A version that is not written yet. `tip` and `frame` are set when it is encoded.

    `num_pooled_bytes`: of arrays whose memory is bounded by their owner. `follows_state`: it is published only once its
    exact state is written.
    """

    number: int
    meta: VersionMeta
    tensors: Arrays
    tip: Tip | None = None
    frame: list[bytes | memoryview] = field(default_factory=list)
    num_pooled_bytes: int = 0
    follows_state: bool = False
    encoded: threading.Event = field(default_factory=threading.Event)

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays in bytes, without those that are bounded elsewhere."""
        return sum(array.nbytes for array in self.tensors.values()) - self.num_pooled_bytes


class RecordEncoder:
    """Encodes one epoch's versions, each onto the one before. Any thread may call it."""

    def __init__(
        self, epoch: int, last: Tip | None, shards_of: Callable[[int], Sequence[ShardEntry]] = lambda number: ()
    ) -> None:
        """`shards_of` returns the shard records that other ranks have written of a version, and waits for them."""
        self.last = last  # the newest encoded version; None before the first base of a new log
        self._epoch, self._shards_of = epoch, shards_of
        self._lock = threading.Lock()

    def encode(self, *versions: PendingRecord) -> Tip:
        """Encode the versions in order, skipping those that have a frame already; return the tip of the last."""
        with self._lock:
            for version in versions:
                if version.tip is None:
                    version.frame, checksum = self._encode(version)
                    version.tip = self.last = Tip(version.number, checksum)
                    version.encoded.set()
        assert version.tip is not None
        return version.tip

    def _encode(self, version: PendingRecord) -> tuple[list[bytes | memoryview], int]:
        assert self.last is not None
        shards = self._shards_of(version.number)
        parent = self.last.checksum
        return encode_pieces(self._epoch, version.number, parent, version.meta, version.tensors, shards)


class ShardEncoder(RecordEncoder):
    """Encodes the shard records of one rank above 0. They have no parents and no meta: their version record has."""

    def __init__(self, epoch: int, last: Tip | None, rank: int) -> None:
        super().__init__(epoch, last)
        self._rank = rank

    def _encode(self, version: PendingRecord) -> tuple[list[bytes | memoryview], int]:
        return encode_shard_pieces(self._epoch, version.number, self._rank, version.tensors)
