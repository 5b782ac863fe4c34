"""Purging: the rows of a generation that are alive move into a new database, and the old one goes whole.

RocksDB frees the disk of single deleted rows when it likes; a folder goes at once. Step by step, beside writes.
"""

# N rows
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from embeddings.tiers.rocksdb.catalog import Database, Generation, Shelf
from embeddings.tiers.rocksdb.channel import ROW
from embeddings.tiers.rocksdb.child_process import FailedError, SpillChild
from embeddings.tiers.write_batch import RecordFormat, UInt8Array

SHARE = 1 / 16  # a generation is rewritten when so much of what was written to it lies below the horizons
STEP_KEYS = 1000
MESSAGE_PAIRS = 1000


@dataclass(eq=False)
class Move:
    """A generation on its way into its newest database."""

    generation: Generation
    horizons: dict[int, int]
    after: str = ""


class Purge:
    """`raise_to` from any thread, `step` from the keeper's."""

    def __init__(self, shelf: Shelf, form: RecordFormat, counts: Counter[str]) -> None:
        self.shelf, self.form, self.counts = shelf, form, counts
        self._horizons: dict[int, int] = {}
        self._raised = False  # since the last look at what they doom
        self._move: Move | None = None
        self._told: tuple[SpillChild, dict[int, int]] | None = None

    def raise_to(self, horizons: Mapping[int, int]) -> None:
        with self.shelf.changed:
            higher = {key: time for key, time in horizons.items() if time > self._horizons.get(key, -(2**63))}
            if higher:
                self._horizons |= higher
                self._raised = True
                self.shelf.changed.notify_all()

    def active(self) -> bool:
        return self._raised or self._move is not None

    def progress(self) -> object:
        """Something that changes with every step."""
        return self._raised, self._move and (self._move.generation.number, self._move.after)

    def step(self, child: Callable[[], SpillChild], deadline: Callable[[], float]) -> None:
        """At most so many rows; FailedError where the disk fails, and the next step tries again."""
        if self._move is not None and self._move.generation.gone:
            self._end()
        if self._move is not None:
            self._move_some(self._move, child, deadline)
        elif self._raised:
            self._begin()

    def _begin(self) -> None:
        with self.shelf.changed:
            self._raised = False
            horizons, generations = dict(self._horizons), list(self.shelf.generations)
        for generation in generations:
            num_below = generation.num_below(horizons)
            if generation.movable and num_below and num_below >= SHARE * generation.num_written():
                self.shelf.add_database(generation)
                with self.shelf.changed:
                    self._raised = True  # the other generations come after this one
                    self._move = Move(generation, horizons)
                return
        with self.shelf.changed:
            self.shelf.changed.notify_all()

    def _move_some(self, move: Move, child: Callable[[], SpillChild], deadline: Callable[[], float]) -> None:
        *sources, target = move.generation.databases
        source = sources[-1]
        all_dead = source.ages.num_below(move.horizons) == source.ages.num_rows and not source.num_marks
        if all_dead:
            self.counts["spill_purged"] += source.ages.num_rows
            last = None
        else:
            living = child()
            keeper, num = living.keeper, min(STEP_KEYS, living.num_keys)
            self._tell(living, move.horizons, deadline)
            request = "move", source.number, target.number, move.after, num, not target.exists
            try:
                seen, alive, last = keeper.call(*request, deadline=deadline())
            except FailedError as error:
                if not error.final:
                    raise
                # what cannot be read stays where it is, for the finds to tell
                move.generation.movable = False
                self._end()
                return
            self._note_moved(target, keeper.keys(alive), keeper.kinds(alive), keeper.records)
            self.counts["spill_purged"] += seen - alive
        with self.shelf.changed:
            move.after = last or ""
        if last is None:
            self.shelf.drop_database(move.generation, source)
            if len(sources) == 1:
                self._end()
        with self.shelf.changed:
            self.shelf.changed.notify_all()

    def _tell(self, child: SpillChild, horizons: Mapping[int, int], deadline: Callable[[], float]) -> None:
        """What this process has not been told yet."""
        if self._told != (child, horizons):
            pairs = list(horizons.items())
            for start in range(0, len(pairs), MESSAGE_PAIRS):
                child.keeper.call("raise_to", pairs[start : start + MESSAGE_PAIRS], deadline=deadline())
            self._told = child, dict(horizons)

    def _note_moved(
        self, target: Database, keys: UInt8Array, kinds_N: UInt8Array, records: Callable[[int], UInt8Array]
    ) -> None:
        if not len(kinds_N):
            return
        target.exists = True
        mixed_N, features_N = self.form.unpack_keys(keys)
        target.keys.add(mixed_N)
        row_N = kinds_N == ROW
        num_rows = int(np.count_nonzero(row_N))
        target.num_marks += len(kinds_N) - num_rows
        target.ages.add(features_N[row_N], self.form.last_seen(records(num_rows), mixed_N[row_N]))

    def _end(self) -> None:
        with self.shelf.changed:
            self._move = None
            self.shelf.changed.notify_all()
