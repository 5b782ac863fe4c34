"""Rules that move with event time: the horizons of features with a time to live, and the sweep of dead rows."""

from collections.abc import Callable, Mapping
from typing import Any

from embeddings.config import FeaturePolicy
from embeddings.memory.resident import ResidentRows
from embeddings.policy.ttl import ExpiryCutoffs
from kernels.types import NO_SLOT

SWEEP_PARTS, MAX_SWEEP_SLOTS = 64, 65536  # a call sweeps a part of the slots, and never so many that a batch feels it


class ExpirySweep:
    """Moves by event time and by calls only, so that the same stream forgets the same rows."""

    def __init__(self, memory: ResidentRows, horizons: ExpiryCutoffs, features: Mapping[int, FeaturePolicy]) -> None:
        self.memory, self.cutoffs = memory, horizons
        self.cursor = 0  # the slot where the next part of the sweep begins
        self.event_ms = 0
        self._pending: tuple[int, int, Callable[[], tuple[Any, ...]]] | None = (
            None  # slots, and which of them were dead
        )
        self._ttl_ms = {f: _ms(policy.ttl_seconds) for f, policy in features.items() if policy.ttl_seconds is not None}

    def set_ttl(self, ttl_seconds: Mapping[int, float | None]) -> None:
        """None: these rows live for ever from now on; what a rule has forgotten stays forgotten."""
        for feature, seconds in ttl_seconds.items():
            if seconds is None:
                self._ttl_ms.pop(feature, None)
            else:
                self._ttl_ms[feature] = _ms(seconds)

    def advance(self, event_ms: int) -> None:
        """1. Horizons follow the event clock. 2. The next part of memory is swept."""
        self.event_ms = max(self.event_ms, event_ms)
        self.cutoffs.raise_to({feature: self.event_ms - ttl for feature, ttl in self._ttl_ms.items()})
        if self.cutoffs:
            num_slots = self.memory.store.num_slots
            start = self.cursor if self.cursor < num_slots else 0
            self.cursor = start + min(-(-num_slots // SWEEP_PARTS), MAX_SWEEP_SLOTS)
            if self.memory.num_pinned == 0:
                self._sweep(start, self.cursor)

    def _sweep(self, start: int, stop: int) -> None:
        """Dead rows leave. On a device those of the call before: by now it is known whether there were any."""
        expired = self.memory.expired_slots(start, stop, self.cutoffs)
        if self.memory.ops.readback_delay == 0:
            self.memory.evict_expired(expired)
            return
        before, self._pending = self._pending, (start, stop, self.memory.ops.download_async(expired))
        if before is not None and (before[2]()[0] != NO_SLOT).any():  # some may have come to life since
            self.memory.evict_expired(self.memory.expired_slots(*before[:2], self.cutoffs))


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
