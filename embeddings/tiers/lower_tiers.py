"""The tiers below memory as one: the spill first, where a mark hides what lies deeper; then the base."""

# U unique keys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from embeddings.memory.eviction import EvictionSink
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import BoolArray, Int64Array, Rows, UInt16Array
from embeddings.tiers.base import RowSource
from embeddings.tiers.interface import ABSENT, ROW, TOMBSTONE, Spill
from embeddings.tiers.upload import RowUpload
from kernels.ops import Ops


@dataclass(frozen=True)
class RecalledRows:
    """What the tiers below know of some keys; a row means something only where it was found."""

    rows: Rows
    found_U: BoolArray
    forgotten_U: BoolArray  # by key or by rule
    from_spill_U: BoolArray
    upload: RowUpload | None = None  # the same rows where they are on their way to the device, the dead ones too

    def without_expired(self, horizons: ExpiryCutoffs) -> "RecalledRows":
        """The same under rules: what they forget is not found."""
        if not horizons or not self.found_U.any():
            return self
        dead_U = self.found_U & ~horizons.alive(self.rows.features, self.rows.last_seen)
        return RecalledRows(
            self.rows,
            self.found_U & ~dead_U,
            self.forgotten_U | dead_U,
            self.from_spill_U & ~dead_U,
            self.upload,
        )

    def take(self, chosen: Int64Array) -> "RecalledRows":
        """What is known of the keys at these positions."""
        if len(chosen) == len(self.found_U) and np.array_equal(chosen, np.arange(len(chosen))):
            return self
        found_N, forgotten_N, from_spill_N = (column[chosen] for column in self._columns())
        return RecalledRows(self.rows.take(chosen), found_N, forgotten_N, from_spill_N)

    @staticmethod
    def concatenate(parts: Sequence["RecalledRows"]) -> "RecalledRows":
        columns = zip(*(part._columns() for part in parts), strict=True)
        found_N, forgotten_N, from_spill_N = map(np.concatenate, columns)
        return RecalledRows(Rows.concatenate([part.rows for part in parts]), found_N, forgotten_N, from_spill_N)

    def _columns(self) -> tuple[BoolArray, ...]:
        return (self.found_U, self.forgotten_U, self.from_spill_U)


class LowerTiers:
    """Recalls rows, at once or ahead of their turn in a thread of its own; knows no rules."""

    def __init__(self, spill: Spill, base: RowSource | None, departures: EvictionSink) -> None:
        self.spill, self.base, self.eviction_sink = spill, base, departures
        self._executor: ThreadPoolExecutor | None = None

    def recall(self, features_U: UInt16Array, ids_U: Int64Array) -> RecalledRows:
        """The rows of unique keys from the highest tier that knows of them; moves nothing. SpillError."""
        self.eviction_sink.retry_spill()
        return _recall(self.spill, self.base, features_U, ids_U)

    def recall_async(self, features_U: UInt16Array, ids_U: Int64Array) -> Future[RecalledRows]:
        """The same while the caller computes; the rows go on to the device."""
        self.eviction_sink.retry_spill()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="recall")
        return self._executor.submit(
            _recall_and_upload, self.eviction_sink.ops, self.spill, self.base, features_U, ids_U
        )

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
        self.spill.close()


def _recall_and_upload(
    ops: Ops, spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array
) -> RecalledRows:
    recalled = _recall(spill, base, features_U, ids_U)
    if not recalled.found_U.any():
        return recalled
    return replace(recalled, upload=RowUpload.start(ops, recalled.rows, recalled.found_U, recalled.from_spill_U))


def _recall(spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array) -> RecalledRows:
    spilled = spill.find(features_U, ids_U)
    rows, found_U = spilled.rows, spilled.kinds == ROW
    from_spill_U = found_U.copy()
    absent = np.flatnonzero(spilled.kinds == ABSENT)
    if base is not None and len(absent):
        deeper = base.find(features_U[absent], ids_U[absent])
        here, there = absent[deeper.found], deeper.found
        rows.values[here], rows.states[here] = deeper.values[there], deeper.states[there]
        rows.counts[here], rows.last_seen[here] = deeper.counts[there], deeper.last_seen[there]
        found_U[here] = True
    return RecalledRows(rows, found_U, spilled.kinds == TOMBSTONE, from_spill_U)
