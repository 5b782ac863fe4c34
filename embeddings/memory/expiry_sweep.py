"""Deletes expired rows from memory, a part of the slots before each batch."""

from collections.abc import Callable
from typing import Any

from springtide.embeddings.memory.resident import ResidentRows
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.kernels.types import NO_SLOT

# a call sweeps this part of the slots, but never so many that a batch is delayed noticeably
SWEEP_PARTS, MAX_SWEEP_SLOTS = 64, 65536


class ExpirySweep:
    """Advances by calls only, never by wall time, so that the same stream deletes the same rows."""

    def __init__(self, memory: ResidentRows, cutoffs: ExpiryCutoffs) -> None:
        self.memory, self.cutoffs = memory, cutoffs
        self.next_slot = 0
        self._pending: tuple[int, int, Callable[[], tuple[Any, ...]]] | None = None  # start, stop, expired slots

    def advance(self) -> None:
        """Sweep the next part of the slots, unless lookups are open."""
        if not self.cutoffs:
            return
        num_slots = self.memory.store.num_slots
        start = self.next_slot if self.next_slot < num_slots else 0
        self.next_slot = start + min(-(-num_slots // SWEEP_PARTS), MAX_SWEEP_SLOTS)
        if self.memory.num_pinned == 0:
            self._sweep(start, self.next_slot)

    def _sweep(self, start: int, stop: int) -> None:
        """Delete expired rows: of these slots if that needs no wait, else of those of the call before."""
        expired = self.memory.expired_slots(start, stop, self.cutoffs)
        if self.memory.ops.readback_delay == 0:
            self.memory.evict_expired(expired)
            return
        before, self._pending = self._pending, (start, stop, self.memory.ops.download_async(expired))
        if before is not None and (before[2]()[0] != NO_SLOT).any():
            # listed again, because some may have been updated since
            self.memory.evict_expired(self.memory.expired_slots(*before[:2], self.cutoffs))
