"""The handle of a lookup, which pins the rows of a batch, and the slices in which its rows are gathered."""

# K keys of a batch, U unique keys
from collections.abc import Callable
from typing import NamedTuple

from springtide.embeddings.policy.admission import RowlessKeys
from springtide.kernels.types import Array, UniqueKeys

POOLING_MODES = ("sum", "mean", "max")


class LookupSlice(NamedTuple):
    """Keys start..stop of a lookup: a row each, or pooled into bags.

    Bag b has the keys offsets_B1[b] to offsets_B1[b + 1], counted from `start`. An empty bag gives zeros.
    """

    start: int
    stop: int
    offsets_B1: Array | None = None
    mode: str = "mean"  # one of POOLING_MODES


class Lookup:
    """The unique keys of a batch with a row for each. The rows stay in memory until `release`, an update, or `del`.

    Keys that were not admitted are replaced by the shared keys of their features (springtide_client.keys).
    """

    __slots__ = ("_release", "_release_later", "erasures", "rowless", "slots_U", "tick", "unique")

    def __init__(
        self,
        release: Callable[[int], None],
        release_later: Callable[[int], None],
        *,
        tick: int,
        erasures: int,
        unique: UniqueKeys,
        slots_U: Array,
        rowless: RowlessKeys | None = None,
    ) -> None:
        self._release: Callable[[int], None] | None = release
        self._release_later = release_later
        self.tick = tick  # of the table's clock: rows stamped with it or later are pinned
        self.erasures = erasures  # of memory.changes, when `slots_U` were found
        self.unique = unique
        self.slots_U = slots_U
        self.rowless = rowless  # admission counts them when the lookup is learned from

    def __len__(self) -> int:
        """Keys, K."""
        return len(self.unique.inverse_K)

    @property
    def released(self) -> bool:
        return self._release is None

    def release(self) -> None:
        """Unpin the rows. A second call does nothing."""
        if self._release is not None:
            release, self._release = self._release, None
            release(self.tick)

    def __del__(self) -> None:
        # the garbage collector may run this in any thread, in the middle of any call: the release is only queued
        if getattr(self, "_release", None) is not None:
            self._release_later(self.tick)
