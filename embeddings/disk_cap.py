"""A cap on the spill's bytes: past it the coldest rows are forgotten by rule."""

from embeddings.horizons import Horizons
from embeddings.sizes import num_bytes
from embeddings.spill import Spill

FORGET_FRACTION = 0.1  # of the stored rows at a time
CHECK_CALLS = 64  # the size of a folder is no cheap question


class DiskCap:
    """Looks at the spill's size every so many batches and raises the horizons of all features where it is too large."""

    def __init__(self, spill: Spill, horizons: Horizons, disk_bytes: int | str) -> None:
        self.spill, self.horizons = spill, horizons
        self.num_bytes = num_bytes(disk_bytes)
        self._num_calls = 0

    def set_limit(self, disk_bytes: int | str) -> None:
        self.num_bytes = num_bytes(disk_bytes)

    def advance(self, features: set[int]) -> None:
        """One batch has passed; `features` are those that have rows."""
        self._num_calls += 1
        if self._num_calls % CHECK_CALLS or self.spill.num_bytes() <= self.num_bytes:
            return
        coldest = self.spill.coldest(FORGET_FRACTION)
        if coldest is not None and self.horizons.raise_to(dict.fromkeys(features, coldest)):
            self.spill.purge(self.horizons.document())
