"""A batch's keys with a row for each: the handle that holds the rows in place from lookup to update."""

# K keys of a batch, U unique keys
from __future__ import annotations

from typing import TYPE_CHECKING

from embeddings.rows import Int64Array, UInt16Array

if TYPE_CHECKING:
    from embeddings.table import EmbeddingTable


class Lookup:
    """Unique keys in order of first occurrence; their rows stay until `release`, an update, or this object's end."""

    __slots__ = (
        "_table",
        "erasures",
        "features_U",
        "ids_U",
        "inverse_K",
        "last_seen_U",
        "occurrences_U",
        "score",
        "slots_U",
    )

    def __init__(
        self,
        table: EmbeddingTable,
        *,
        score: int,
        erasures: int,
        features_U: UInt16Array,
        ids_U: Int64Array,
        slots_U: Int64Array,
        inverse_K: Int64Array,
        occurrences_U: Int64Array,
        last_seen_U: Int64Array,
    ) -> None:
        self._table: EmbeddingTable | None = table
        self.score = score  # the table's clock: rows with this score or a newer one are protected
        self.erasures = erasures
        self.features_U = features_U
        self.ids_U = ids_U
        self.slots_U = slots_U
        self.inverse_K = inverse_K
        self.occurrences_U = occurrences_U
        self.last_seen_U = last_seen_U

    @property
    def released(self) -> bool:
        return self._table is None

    def release(self) -> None:
        """The rows may be evicted from now on; a second call does nothing."""
        if self._table is not None:
            table, self._table = self._table, None
            table.release(self.score)

    def __del__(self) -> None:
        # the collector may run this in any thread and amid any call: the table is only told
        table = getattr(self, "_table", None)
        if table is not None:
            table.abandon(self.score)
