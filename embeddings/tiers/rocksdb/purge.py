"""Purging: the rows of a generation that are alive move into a new database, and the old one goes whole.

RocksDB frees the disk of single deleted rows when it likes; a folder goes at once. Step by step, beside writes.
"""

# N rows
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from embeddings.tiers.rocksdb.catalog import Catalog, Database, Generation
from embeddings.tiers.rocksdb.channel import ROW
from embeddings.tiers.rocksdb.child_process import RequestFailedError, SpillProcess
from embeddings.tiers.write_batch import RecordFormat, UInt8Array

SHARE = 1 / 16  # a generation is rewritten when so much of what was written to it lies below the horizons
STEP_KEYS = 1000
MESSAGE_PAIRS = 1000


@dataclass(eq=False)
class Rewrite:
    """A generation on its way into its newest database."""

    generation: Generation
    cutoffs: dict[int, int]
    after: str = ""


class Purge:
    """`raise_to` from any thread, `step` from the keeper's."""

    def __init__(self, shelf: Catalog, form: RecordFormat, counts: Counter[str]) -> None:
        self.catalog, self.record_format, self.counts = shelf, form, counts
        self._cutoffs: dict[int, int] = {}
        self._raised = False  # since the last look at what they doom
        self._rewrite: Rewrite | None = None
        self._sent_cutoffs: tuple[SpillProcess, dict[int, int]] | None = None

    def raise_cutoffs(self, horizons: Mapping[int, int]) -> None:
        with self.catalog.changed:
            higher = {key: time for key, time in horizons.items() if time > self._cutoffs.get(key, -(2**63))}
            if higher:
                self._cutoffs |= higher
                self._raised = True
                self.catalog.changed.notify_all()

    def active(self) -> bool:
        return self._raised or self._rewrite is not None

    def progress(self) -> object:
        """Something that changes with every step."""
        return self._raised, self._rewrite and (self._rewrite.generation.number, self._rewrite.after)

    def step(self, child: Callable[[], SpillProcess], deadline: Callable[[], float]) -> None:
        """At most so many rows; RequestFailedError where the disk fails, and the next step tries again."""
        if self._rewrite is not None and self._rewrite.generation.is_destroyed:
            self._end()
        if self._rewrite is not None:
            self._rewrite_some(self._rewrite, child, deadline)
        elif self._raised:
            self._begin()

    def _begin(self) -> None:
        with self.catalog.changed:
            self._raised = False
            horizons, generations = dict(self._cutoffs), list(self.catalog.generations)
        for generation in generations:
            num_below = generation.num_below(horizons)
            if generation.can_be_rewritten and num_below and num_below >= SHARE * generation.num_written():
                self.catalog.add_database(generation)
                with self.catalog.changed:
                    self._raised = True  # the other generations come after this one
                    self._rewrite = Rewrite(generation, horizons)
                return
        with self.catalog.changed:
            self.catalog.changed.notify_all()

    def _rewrite_some(self, move: Rewrite, child: Callable[[], SpillProcess], deadline: Callable[[], float]) -> None:
        *sources, target = move.generation.databases
        source = sources[-1]
        all_dead = source.last_seen.num_below(move.cutoffs) == source.last_seen.num_rows and not source.num_tombstones
        if all_dead:
            self.counts["spill_purged"] += source.last_seen.num_rows
            last = None
        else:
            living = child()
            keeper, num = living.worker_channel, min(STEP_KEYS, living.num_keys)
            self._send_cutoffs(living, move.cutoffs, deadline)
            request = "move", source.number, target.number, move.after, num, not target.exists
            try:
                seen, alive, last = keeper.call(*request, deadline=deadline())
            except RequestFailedError as error:
                if not error.final:
                    raise
                # what cannot be read stays where it is, for the finds to tell
                move.generation.can_be_rewritten = False
                self._end()
                return
            self._record_moved(target, keeper.keys(alive), keeper.kinds(alive), keeper.records)
            self.counts["spill_purged"] += seen - alive
        with self.catalog.changed:
            move.after = last or ""
        if last is None:
            self.catalog.retire_database(move.generation, source)
            if len(sources) == 1:
                self._end()
        with self.catalog.changed:
            self.catalog.changed.notify_all()

    def _send_cutoffs(self, child: SpillProcess, horizons: Mapping[int, int], deadline: Callable[[], float]) -> None:
        """What this process has not been told yet."""
        if self._sent_cutoffs != (child, horizons):
            pairs = list(horizons.items())
            for start in range(0, len(pairs), MESSAGE_PAIRS):
                child.worker_channel.call("raise_to", pairs[start : start + MESSAGE_PAIRS], deadline=deadline())
            self._sent_cutoffs = child, dict(horizons)

    def _record_moved(
        self, target: Database, keys: UInt8Array, kinds_N: UInt8Array, records: Callable[[int], UInt8Array]
    ) -> None:
        if not len(kinds_N):
            return
        target.exists = True
        mixed_N, features_N = self.record_format.unpack_keys(keys)
        target.keys.add(mixed_N)
        row_N = kinds_N == ROW
        num_rows = int(np.count_nonzero(row_N))
        target.num_tombstones += len(kinds_N) - num_rows
        target.last_seen.add(features_N[row_N], self.record_format.last_seen(records(num_rows), mixed_N[row_N]))

    def _end(self) -> None:
        with self.catalog.changed:
            self._rewrite = None
            self.catalog.changed.notify_all()
