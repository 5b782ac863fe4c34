"""The counters of a table, since it was made."""

from collections import Counter
from typing import Any

from kernels.ops import Ops

COUNTERS = (
    "keys",  # looked up, every occurrence
    "hits_device",  # unique keys of a look-up that had a row in memory
    "recalled_from_spill",  # those that a host tier still had are hits_host too
    "recalled_from_base",
    "prefetched",  # asked for below ahead of their turn, in time
    "created",
    "admitted",
    "not_admitted",
    "refused_gradients",
    "evicted",
    "evicted_capacity",
    "evicted_quota",
    "evicted_resize",
    "expired",  # rows in memory that a rule had forgotten: swept away, or begun anew
    "spilled",
    "dropped",  # evicted without having changed
    "lost",  # evicted without a spill
    "forgotten",  # keys named to be forgotten
    "regret",  # evicted or expired, then asked for again within 1,000 look-ups
    "cuts",
)


class TableCounters(Counter[str]):
    """Numbers by name. Some of what is added may be known to the device only, until somebody asks."""

    def __init__(self) -> None:
        super().__init__()
        self._late: dict[str, Any] = {}

    def add(self, name: str, number: Any) -> None:
        """`number`: an integer, or an array of one on the device."""
        if isinstance(number, int):
            self[name] += number
        else:
            self._late[name] = self._late[name] + number if name in self._late else number

    def fetch_pending(self, ops: Ops) -> None:
        """Fetches what the device knows."""
        if self._late:
            for name, number_1 in zip(list(self._late), ops.fetch(*self._late.values()), strict=True):
                self[name] += int(number_1[0])
            self._late.clear()
