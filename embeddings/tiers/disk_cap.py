"""A cap on the bytes of the spill and of what shares its disk: past it the coldest rows are forgotten by rule."""

from collections.abc import Callable, Iterable

from springtide_client.system.sizes import parse_size

from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.tiers.interface import Spill

FORGET_FRACTION = 0.1  # of the stored rows at a time
CHECK_CALLS = 64  # the size of a folder is no cheap question


class DiskCap:
    """Every so many batches: 1. what rules have forgotten is cleared. 2. Where that is not enough, horizons rise.

    How large the folder is depends on the disk and on when it was asked: the horizons that rise here are told by the
    next version, and only what follows from a version is exact.
    """

    def __init__(
        self, spill: Spill, horizons: ExpiryCutoffs, disk_bytes: int | str, *, beside: Callable[[], int] = lambda: 0
    ) -> None:
        """`beside`: bytes that others take of it; at most half counts, for no forgetting gives those back."""
        self.spill, self.cutoffs, self._beside = spill, horizons, beside
        self.num_bytes = parse_size(disk_bytes)
        self._num_calls = 0

    def set_limit(self, disk_bytes: int | str) -> None:
        self.num_bytes = parse_size(disk_bytes)

    def spill_bytes(self) -> int:
        """What the spill may take now."""
        return max(self.num_bytes - self._beside(), self.num_bytes // 2)

    def advance(self, features: Iterable[int]) -> None:
        """One batch has passed; `features` are those that have rows."""
        self._num_calls += 1
        if self._num_calls % CHECK_CALLS:
            return
        if self.cutoffs:
            self.spill.purge(self.cutoffs.as_dict())
        # what is being cleared may be enough
        if self.spill.num_bytes() <= self.spill_bytes() or self.spill.is_purging():
            return
        coldest = self.spill.last_seen_quantile(FORGET_FRACTION)
        if coldest is not None and self.cutoffs.raise_to(dict.fromkeys(features, coldest)):
            self.spill.purge(self.cutoffs.as_dict())
