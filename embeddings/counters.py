"""The counters of a table."""

from collections import Counter
from typing import Any

from springtide.kernels.ops import Ops

COUNTERS = (
    "keys",  # looked up, every occurrence
    "hits_device",  # unique keys of a lookup that had a row in memory
    "recalled_from_spill",  # rows that came from a host tier are counted in hits_host too
    "recalled_from_base",
    "prefetched",  # fetched before their lookup, in time
    "created",
    "admitted",
    "not_admitted",
    "refused_gradients",
    "evicted",
    "evicted_capacity",
    "evicted_quota",
    "evicted_resize",
    "expired",  # rows in memory past their TTL: deleted, or created again
    "spilled",
    "dropped",  # evicted unchanged: the tiers below have the row
    "lost",  # evicted without a spill
    "forgotten",  # keys passed to `forget`
    "premature_evictions",  # evicted or expired, then looked up again within 1,000 lookups
    "checkpoints",  # calls of `take_delta`
)


class TableCounters(Counter[str]):
    """Counts by name since the table was made. Some increments may still be on the device."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, Any] = {}

    def add(self, name: str, number: Any) -> None:
        """Add an integer, or an array of one number on the device, without waiting for it."""
        if isinstance(number, int):
            self[name] += number
        else:
            self._pending[name] = self._pending[name] + number if name in self._pending else number

    def fetch_pending(self, ops: Ops) -> None:
        """Add the increments that are still on the device; waits for it."""
        if self._pending:
            for name, number_1 in zip(list(self._pending), ops.fetch(*self._pending.values()), strict=True):
                self[name] += int(number_1[0])
            self._pending.clear()
