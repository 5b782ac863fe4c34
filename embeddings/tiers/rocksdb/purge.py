"""Purges expired rows: moves the live rows of a generation into a new database, then deletes the old one whole.

RocksDB frees the disk space of single deleted rows at its leisure; a folder is deleted at once. Works in small steps
between writes.
"""

# N rows
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from embeddings.tiers.record_kinds import ROW
from embeddings.tiers.rocksdb.catalog import Catalog, Database, Generation
from embeddings.tiers.rocksdb.child_process import RequestFailedError, SpillProcess
from embeddings.tiers.rocksdb.record_format import RecordFormat, UInt8Array

EXPIRED_SHARE = 1 / 16  # a generation is rewritten once this share of what was written to it has expired
KEYS_PER_STEP = 1000
CUTOFFS_PER_REQUEST = 1000


@dataclass(eq=False)
class Rewrite:
    """A generation whose live rows are being moved into its newest database."""

    generation: Generation
    cutoffs: dict[int, int]
    after: str = ""  # the last key that was moved


class Purge:
    """`raise_cutoffs` may be called in any thread, `step` in the worker's."""

    def __init__(self, catalog: Catalog, record_format: RecordFormat, counts: Counter[str]) -> None:
        self.catalog, self.record_format, self.counts = catalog, record_format, counts
        self._cutoffs: dict[int, int] = {}
        self._raised = False  # generations have not been checked against the cutoffs since
        self._rewrite: Rewrite | None = None
        self._sent_cutoffs: tuple[SpillProcess, dict[int, int]] | None = None

    def raise_cutoffs(self, cutoffs: Mapping[int, int]) -> None:
        """Purge rows last seen before these cutoffs, in ms by feature; a cutoff never falls."""
        with self.catalog.changed:
            higher = {key: time for key, time in cutoffs.items() if time > self._cutoffs.get(key, -(2**63))}
            if higher:
                self._cutoffs |= higher
                self._raised = True
                self.catalog.changed.notify_all()

    def active(self) -> bool:
        return self._raised or self._rewrite is not None

    def progress(self) -> object:
        """A value that changes with every step."""
        return self._raised, self._rewrite and (self._rewrite.generation.number, self._rewrite.after)

    def step(self, process: Callable[[], SpillProcess], deadline: Callable[[], float]) -> None:
        """Move at most KEYS_PER_STEP rows. RequestFailedError if the disk fails; the next step tries again."""
        if self._rewrite is not None and self._rewrite.generation.is_destroyed:
            self._end()
        if self._rewrite is not None:
            self._rewrite_some(self._rewrite, process, deadline)
        elif self._raised:
            self._start()

    def _start(self) -> None:
        """Start to rewrite the first generation that is worth it."""
        with self.catalog.changed:
            self._raised = False
            cutoffs, generations = dict(self._cutoffs), list(self.catalog.generations)
        for generation in generations:
            num_below = generation.num_below(cutoffs)
            is_worth_it = num_below and num_below >= EXPIRED_SHARE * generation.num_written()
            if generation.can_be_rewritten and is_worth_it:
                self.catalog.add_database(generation)
                with self.catalog.changed:
                    self._raised = True  # the other generations are checked after this one
                    self._rewrite = Rewrite(generation, cutoffs)
                return
        with self.catalog.changed:
            self.catalog.changed.notify_all()

    def _rewrite_some(
        self, rewrite: Rewrite, process: Callable[[], SpillProcess], deadline: Callable[[], float]
    ) -> None:
        *sources, target = rewrite.generation.databases
        source = sources[-1]
        all_expired = source.last_seen.num_below(rewrite.cutoffs) == source.last_seen.num_rows
        if all_expired and not source.num_tombstones:
            self.counts["spill_purged"] += source.last_seen.num_rows
            last = None
        else:
            running = process()
            channel, num = running.worker_channel, min(KEYS_PER_STEP, running.num_keys)
            self._send_cutoffs(running, rewrite.cutoffs, deadline)
            request = "move", source.number, target.number, rewrite.after, num, not target.exists
            try:
                num_seen, num_alive, last = channel.call(*request, deadline=deadline())
            except RequestFailedError as error:
                if not error.final:
                    raise
                # leave what cannot be read in place; a find that needs it reports the error
                rewrite.generation.can_be_rewritten = False
                self._end()
                return
            self._record_moved(target, channel.keys(num_alive), channel.kinds(num_alive), channel.records)
            self.counts["spill_purged"] += num_seen - num_alive
        with self.catalog.changed:
            rewrite.after = last or ""
        if last is None:
            self.catalog.retire_database(rewrite.generation, source)
            if len(sources) == 1:
                self._end()
        with self.catalog.changed:
            self.catalog.changed.notify_all()

    def _send_cutoffs(self, process: SpillProcess, cutoffs: Mapping[int, int], deadline: Callable[[], float]) -> None:
        """Send the cutoffs to the process unless it has them."""
        if self._sent_cutoffs != (process, cutoffs):
            pairs = list(cutoffs.items())
            for start in range(0, len(pairs), CUTOFFS_PER_REQUEST):
                part = pairs[start : start + CUTOFFS_PER_REQUEST]
                process.worker_channel.call("raise_cutoffs", part, deadline=deadline())
            self._sent_cutoffs = process, dict(cutoffs)

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
