"""Limits the bytes of the spill: beyond its part of `disk_bytes` the rows seen least recently expire."""

from collections.abc import Callable, Iterable

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.tiers.interface import Spill

CHECK_CALLS = 64  # measuring the log is too slow for every batch


class DiskCap:
    """Tells the spill its limit, and raises the expiry cutoffs when the spill can keep it in no other way.

    The size of the folder depends on the disk and on the time of the check. So these cutoffs do not follow from the
    stream alone: the next version contains them, and only a replay of versions reproduces them.
    """

    def __init__(
        self, spill: Spill, cutoffs: ExpiryCutoffs, disk_bytes: int, *, other_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        """`other_bytes`: what the log takes of `disk_bytes`. At most half counts, because expiry cannot free it."""
        self.spill, self.cutoffs, self._other_bytes = spill, cutoffs, other_bytes
        self._num_calls = 0
        self.share: Callable[[int], int] = lambda num_bytes: num_bytes  # of what all spills may take; one has it all
        self.set_limit(disk_bytes)

    def set_limit(self, disk_bytes: int) -> None:
        self.num_bytes = disk_bytes
        self.spill.set_limit(self.spill_bytes())

    def spill_bytes(self) -> int:
        """The bytes that the spill may take now."""
        return self.share(max(self.num_bytes - self._other_bytes(), self.num_bytes // 2))

    def advance(self, features: Iterable[int]) -> None:
        """Before a batch: let rows expire if they must; `features` are those that have rows."""
        self._num_calls += 1
        if self._num_calls % CHECK_CALLS == 0:
            self.spill.set_limit(self.spill_bytes())
            if self.cutoffs:
                self.spill.purge(self.cutoffs.as_dict())
        fraction = self.spill.fraction_to_forget()
        if not fraction:
            return
        coldest = self.spill.last_seen_quantile(fraction)
        if coldest is not None and self.cutoffs.raise_to(dict.fromkeys(features, coldest)):
            self.spill.purge(self.cutoffs.as_dict())
