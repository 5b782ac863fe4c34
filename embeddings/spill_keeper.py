"""The thread behind a spill: the queue of writes, and the one who starts the process, writes, moves and destroys."""

# N rows
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embeddings.errors import SpillError
from embeddings.generation import Database, Generation
from embeddings.spill_block import Block, RecordFormat
from embeddings.spill_child import ChildLostError, FailedError, SpillChild
from embeddings.spill_process import CALL_KEYS, ROW

MAX_BLOCKS = 256
PURGE_SHARE = 0.1  # a generation is rewritten when so much of it lies below the horizons
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


@dataclass(eq=False)
class Move:
    """A generation on its way into its newest database."""

    generation: Generation
    horizons: dict[int, int]
    after: str = ""


class Keeper:
    """State under one lock; `changed` tells of every change of it."""

    def __init__(self, folder: Path, form: RecordFormat, *, queue_bytes: int, patience_seconds: float) -> None:
        self.folder, self.form, self.queue_bytes, self.patience_seconds = folder, form, queue_bytes, patience_seconds
        self.changed = threading.Condition()
        self.generations = [Generation(0)]
        self.waiting: deque[tuple[Generation, Block]] = deque()  # oldest first; removed once written
        self.waiting_bytes = 0
        self.counts = dict.fromkeys(("written", "purged", "process_starts", "failed_writes"), 0)
        self._horizons: dict[int, int] = {}
        self._plan = False  # horizons were raised since the last look at what they doom
        self._move: Move | None = None
        self._doomed: list[Database] = []
        self._num_databases = 0
        self._child: SpillChild | None = None
        self._wanted = False  # a find waits for a process
        self._trouble = ""
        self._pause, self._paused_until = FIRST_PAUSE, 0.0
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="spill-keeper", daemon=True)
        self._thread.start()

    # for any thread

    def deadline(self) -> float:
        return time.monotonic() + self.patience_seconds

    def raise_error(self) -> None:
        if self._error is not None:
            raise SpillError(f"the spill in {self.folder} has failed: {advised(str(self._error))}") from self._error
        if self._closing:
            raise SpillError(f"the spill in {self.folder} is closed")

    def put(self, block: Block, num_new: int) -> None:
        """Into the queue; one block may always wait, however large it is."""

        def has_room() -> bool:
            fits = self.waiting_bytes + block.num_bytes <= self.queue_bytes and len(self.waiting) < MAX_BLOCKS
            return fits or not self.waiting or self._error is not None or self._closing

        with self.changed:
            if not self.changed.wait_for(has_room, self.patience_seconds):
                why = advised(self._trouble or "its disk is too slow")
                raise SpillError(f"the spill in {self.folder} takes no rows: {why}")
            self.raise_error()
            self.waiting.append((self.generations[-1], block))
            self.generations[-1].num_rows += num_new
            self.waiting_bytes += block.num_bytes
            self.changed.notify_all()

    @contextmanager
    def reading(self) -> Iterator[tuple[list[Block], list[Database]]]:
        """What waits and what is on disk, the newest first; the databases live until this ends."""
        with self.changed:
            self.raise_error()
            blocks = [block for _, block in reversed(self.waiting)]
            newest_first = [database for generation in self.generations for database in generation.databases][::-1]
            databases = [database for database in newest_first if database.exists]
            for database in databases:
                database.readers += 1
        try:
            yield blocks, databases
        finally:
            with self.changed:
                for database in databases:
                    database.readers -= 1
                if self._doomed:
                    self.changed.notify_all()

    def child(self, deadline: float) -> SpillChild:
        """The living process; waits for one to be started."""
        with self.changed:
            self._wanted = True
            self.changed.notify_all()
            ready = self.changed.wait_for(
                lambda: self._alive() or self._error is not None or self._closing, max(0.0, deadline - time.monotonic())
            )
            self.raise_error()
            if not ready or self._child is None:
                raise SpillError(f"the spill in {self.folder} does not answer: {advised(self._trouble)}")
            return self._child

    def wait_a_little(self, pause: float) -> None:
        """Ends early where waiting has become pointless."""
        with self.changed:
            self.changed.wait_for(lambda: self._error is not None or self._closing, pause)

    def drain(self) -> None:
        """Until nothing waits, is purged or destroyed; SpillError where the disk makes no progress in time."""

        def progress() -> tuple[object, ...]:
            return len(self.waiting), len(self._doomed), self._plan, self._move and self._move.after

        with self.changed:
            deadline = self.deadline()
            while self.waiting or self.purging() or any(not database.readers for database in self._doomed):
                before = progress()
                self.changed.wait(max(0.0, deadline - time.monotonic()))
                self.raise_error()
                if progress() != before:
                    deadline = self.deadline()
                elif time.monotonic() >= deadline:
                    raise SpillError(f"the spill in {self.folder} cannot be written: {advised(self._trouble)}")

    def open_generation(self) -> int:
        with self.changed:
            closed = self.generations[-1].number
            self.generations.append(Generation(closed + 1))
            return closed

    def destroy_generations(self, upto: int) -> None:
        with self.changed:
            for generation in self.generations:
                if generation.number <= upto:
                    generation.gone = True
                    self._doomed += generation.databases
            self.generations = [generation for generation in self.generations if not generation.gone]
            self.changed.notify_all()

    def purge(self, horizons: dict[int, int]) -> None:
        with self.changed:
            raised = {f: horizon for f, horizon in horizons.items() if horizon > self._horizons.get(f, -(2**63))}
            if raised:
                self._horizons |= raised
                self._plan = True
                self.changed.notify_all()

    def purging(self) -> bool:
        return self._plan or self._move is not None

    def memory_bytes(self) -> int:
        with self.changed:
            filters = sum(d.keys.num_bytes() for generation in self.generations for d in generation.databases)
            return filters + (self._child.num_bytes if self._child is not None else 0)

    def close(self) -> None:
        """Ends without writing what waits, and removes the folder: nothing in it outlives its owner."""
        with self.changed:
            if self._closing:
                return
            self._closing = True
            if self._child is not None:
                self._child.kill()
            self.changed.notify_all()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    # the keeper's thread

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                try:
                    self._work()
                    self._trouble, self._pause = "", FIRST_PAUSE
                except ChildLostError as error:
                    self._stumble(str(error))
                except FailedError as error:
                    if error.final:
                        raise
                    self._stumble(str(error))
        except BaseException as error:  # told to the next caller
            with self.changed:
                self._error = error
                self.changed.notify_all()
        finally:
            if self._child is not None:
                self._child.close()

    def _wait_for_work(self) -> bool:
        """Whether there is any; False when it is time to end."""
        with self.changed:
            pause = self._paused_until - time.monotonic()
            if pause > 0:
                self.changed.wait_for(lambda: self._closing, pause)
            self.changed.wait_for(
                lambda: (
                    self._closing
                    or self.waiting
                    or self.purging()
                    or (self._wanted and not self._alive())
                    or any(not database.readers for database in self._doomed)
                )
            )
            return not self._closing

    def _stumble(self, why: str) -> None:
        """The work is done again after a pause; callers are told why if their patience ends."""
        with self.changed:
            self._trouble = why
            self._paused_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _work(self) -> None:
        """A step of each kind that there is: a full disk keeps nobody from destroying."""
        troubles = []
        for step in (self._destroy_doomed, self._revive, self._write_oldest, self._purge_step):
            try:
                step()
            except FailedError as error:
                if error.final:
                    raise
                troubles.append(error)
        if troubles:
            raise troubles[0]

    def _revive(self) -> None:
        if self._wanted and not self._alive():
            self._ready_child()

    def _alive(self) -> bool:
        return self._child is not None and not self._child.lost

    def _ready_child(self) -> SpillChild:
        if self._child is not None and not self._child.lost:
            return self._child
        if self._child is not None:
            self._child.close()
        child = SpillChild(self.folder, self.form.num_bytes)
        with self.changed:
            self._child, self._wanted = child, False
            self.counts["process_starts"] += 1
        child.keeper.call(deadline=self.deadline())
        with self.changed:
            self.changed.notify_all()
        return child

    def _write_oldest(self) -> None:
        if not self.waiting:
            return
        generation, block = self.waiting[0]
        if not generation.gone:
            self._write(self._top(generation), block)
        with self.changed:
            self.waiting.popleft()
            self.waiting_bytes -= block.num_bytes
            self.counts["written"] += len(block)
            self.changed.notify_all()

    def _write(self, database: Database, block: Block) -> None:
        child = self._ready_child()
        database.keys.add(block.mixed)
        for start in range(0, len(block), child.num_keys):
            part = block.part(start, start + child.num_keys)
            self.form.pack_keys(part.mixed, part.features, child.keeper.keys(len(part)))
            if part.rows is not None:
                self.form.pack(part.rows, child.keeper.records(len(part)))
            try:
                self._call(child, "write", database.number, len(part), part.rows is None, not database.exists)
            except FailedError:
                self.counts["failed_writes"] += 1
                raise
            database.exists = True
        if block.rows is None:
            database.num_marks += len(block)
        else:
            database.ages.add(block.features, block.rows.last_seen)

    def _top(self, generation: Generation) -> Database:
        if not generation.databases:
            self._add_database(generation)
        return generation.databases[-1]

    def _add_database(self, generation: Generation) -> None:
        with self.changed:
            database = Database(self._num_databases)
            generation.databases.append(database)
            self._num_databases += 1
            if generation.gone:
                self._doomed.append(database)

    def _call(self, child: SpillChild, *request: Any) -> list[Any]:
        return child.keeper.call(*request, deadline=self.deadline())

    def _destroy_doomed(self) -> None:
        with self.changed:
            free = [database for database in self._doomed if not database.readers]
        for database in free:
            if self._child is not None and not self._child.lost:
                self._call(self._child, "destroy", database.number)
            else:
                shutil.rmtree(self.folder / f"{database.number:06d}", ignore_errors=True)
            with self.changed:
                self._doomed.remove(database)
                self.changed.notify_all()

    # purging: the rows that are alive move into a new database, and the old one goes whole

    def _purge_step(self) -> None:
        if not self.purging():
            return
        if self._move is None:
            self._begin_move()
        elif self._move.generation.gone:
            self._move = None
        else:
            self._move_some(self._move)

    def _begin_move(self) -> None:
        with self.changed:
            self._plan = False
            horizons = dict(self._horizons)
            generations = [generation for generation in self.generations if generation.movable]
        for generation in generations:
            num_below, num_written = generation.num_below(horizons), generation.num_written()
            if num_below and num_below >= PURGE_SHARE * num_written:
                self._add_database(generation)
                with self.changed:
                    self._plan = True  # another generation may want it too
                    self._move = Move(generation, horizons)
                return
        with self.changed:
            self.changed.notify_all()

    def _move_some(self, move: Move) -> None:
        *sources, target = move.generation.databases
        source = sources[-1]
        dead = source.ages.num_below(move.horizons)
        if not source.exists or (dead == source.ages.num_rows and not source.num_marks):
            self.counts["purged"] += source.ages.num_rows
            self._end_source(move, source)
            return
        child = self._ready_child()
        num = min(CALL_KEYS, child.num_keys)
        try:
            horizons = list(move.horizons.items())
            seen, moved, last = self._call(
                child, "move", source.number, target.number, move.after, num, not target.exists, horizons
            )
        except FailedError as error:
            if not error.final:
                raise
            # what cannot be read stays where it is, for the finds to tell
            move.generation.movable, self._move = False, None
            return
        self._note_moved(child, target, moved)
        self.counts["purged"] += seen - moved
        if last is None:
            self._end_source(move, source)
        else:
            with self.changed:
                move.after = last
                self.changed.notify_all()

    def _note_moved(self, child: SpillChild, target: Database, moved: int) -> None:
        if not moved:
            return
        target.exists = True
        mixed_N, features_N = self.form.unpack_keys(child.keeper.keys(moved))
        target.keys.add(mixed_N)
        is_row_N = child.keeper.kinds(moved) == ROW
        num_rows = int(np.count_nonzero(is_row_N))
        target.num_marks += moved - num_rows
        target.ages.add(features_N[is_row_N], self.form.last_seen(child.keeper.records(num_rows)))

    def _end_source(self, move: Move, source: Database) -> None:
        with self.changed:
            generation = move.generation
            generation.databases = [database for database in generation.databases if database is not source]
            self._doomed.append(source)
            move.after = ""
            if len(generation.databases) == 1:
                generation.num_rows = min(generation.num_rows, generation.num_written())
                self._move = None
            self.changed.notify_all()


def advised(why: str) -> str:
    """The reason, and what to do about it."""
    for sign, advice in ADVICE.items():
        if sign.lower() in why.lower():
            return f"{why} - {advice}"
    return why


ANOTHER = "another process has it open: give every trainer a disk_path of its own"
ADVICE = {
    "no space left": "free some space on its disk, or lower disk_bytes",
    "file too large": "raise the limit on the size of files, or lower disk_bytes",
    "lock hold": ANOTHER,
    "lock file": ANOTHER,
    "read-only file system": "make disk_path writable",
    "permission denied": "make disk_path writable",
    "vanished": "start again: what was spilled is read back from the log",
    "a record of": "start again: what was spilled is read back from the log",
    "corruption": "check the disk, and start again: what was spilled is read back from the log",
    "no rocksdb": "install rocksdb-py, or do without a spill",
}
