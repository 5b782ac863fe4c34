"""A batch's keys with a row for each: the handle that holds the rows in place from lookup to update."""

# K keys of a batch, U unique keys
from __future__ import annotations

from typing import TYPE_CHECKING

from springtide_client.keys import SHARED_ROW_OFFSET

from kernels.types import Array, UniqueKeys

if TYPE_CHECKING:
    from embeddings.table import EmbeddingTable


class Lookup:
    """Unique keys, each with its row; the rows stay until `release`, an update, or this object's end.

    Keys that were not admitted are replaced by the shared keys of their features (springtide_client.keys).
    """

    __slots__ = ("_table", "erasures", "slots_U", "tick", "unique")

    def __init__(self, table: EmbeddingTable, *, tick: int, erasures: int, unique: UniqueKeys, slots_U: Array) -> None:
        self._table: EmbeddingTable | None = table
        self.tick = tick  # of the table's clock: rows stamped with it or later are protected
        self.erasures = erasures
        self.unique = unique
        self.slots_U = slots_U

    def __len__(self) -> int:
        """Keys, K."""
        return len(self.unique.inverse_K)

    @property
    def not_admitted_K(self) -> Array:
        """Which keys share a row because they were seen too seldom."""
        return (self.unique.features_U >= SHARED_ROW_OFFSET)[self.unique.inverse_K]

    @property
    def released(self) -> bool:
        return self._table is None

    def release(self) -> None:
        """The rows may be evicted from now on; a second call does nothing."""
        if self._table is not None:
            table, self._table = self._table, None
            table.release(self.tick)

    def __del__(self) -> None:
        # the collector may run this in any thread and amid any call: the table is only told
        table = getattr(self, "_table", None)
        if table is not None:
            table.release_later(self.tick)
