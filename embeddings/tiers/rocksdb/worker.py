"""The thread behind a spill: the only one that starts its process, writes, purges and destroys."""

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embeddings.errors import SpillError
from embeddings.tiers.rocksdb.catalog import Database, Shelf
from embeddings.tiers.rocksdb.child_process import ChildLostError, FailedError, SpillChild
from embeddings.tiers.rocksdb.error_hints import advised
from embeddings.tiers.rocksdb.purge import Purge
from embeddings.tiers.write_batch import Block, RecordFormat

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
TOLD_SECONDS = 1.0  # a caller that has waited for so long is told of


class Keeper:
    """What fails is done again after a pause, for ever; callers are told why when their patience ends."""

    def __init__(self, folder: Path, form: RecordFormat, *, queue_bytes: int, patience_seconds: float) -> None:
        self.folder, self.form, self.patience_seconds = folder, form, patience_seconds
        self.shelf, self.counts = Shelf(queue_bytes), Counter[str]()
        self.purge = Purge(self.shelf, form, self.counts)
        self._changed = self.shelf.changed
        self._child: SpillChild | None = None
        self._wanted = False  # a find waits for a process
        self._trouble = ""
        self._callers: dict[int, float] = {}  # threads that wait -> since when
        self._pause, self._paused_until = FIRST_PAUSE, 0.0
        self._error: BaseException | None = None
        self._closing = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="spill-keeper", daemon=True)
        self._thread.start()

    # for any thread

    def deadline(self) -> float:
        return time.monotonic() + self.patience_seconds

    def put(self, block: Block, num_new: int) -> None:
        """Into the queue, when there is room."""
        with self._changed, self.calling():
            if not self._changed.wait_for(lambda: self.shelf.has_room(block) or self._over(), self.patience_seconds):
                raise self._failure("takes no rows", self._trouble or "its disk is too slow")
            self._raise_error()
            self.shelf.append(block, num_new)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """This thread asks for something that may take long."""
        me = threading.get_ident()
        self._callers[me] = time.monotonic()
        try:
            yield
        finally:
            del self._callers[me]

    def waits_for(self) -> str:
        """Why a caller has been waiting for longer than a second; empty where none has. Waits for nothing itself."""
        since = min(list(self._callers.values()), default=float("inf"))
        if time.monotonic() - since < TOLD_SECONDS:
            return ""
        return str(self._failure("is waited for", self._trouble))

    @contextmanager
    def reading(self) -> Iterator[tuple[list[Block], list[Database]]]:
        """Shelf.reading, of a spill that is well."""
        with self._changed:
            self._raise_error()
        with self.shelf.reading() as found:
            yield found

    def child(self, deadline: float) -> SpillChild:
        """The living process; waits for one to be started."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            remaining = max(0.0, deadline - time.monotonic())
            ready = self._changed.wait_for(lambda: self._alive() or self._over(), remaining)
            self._raise_error()
            if not ready or self._child is None:
                raise self._failure("does not answer", self._trouble)
            return self._child

    def wait_a_little(self, pause: float) -> None:
        """Ends early where waiting has become pointless."""
        with self._changed:
            self._changed.wait_for(self._over, pause)

    def drain(self) -> None:
        """Until nothing waits, is purged or destroyed; SpillError where there is no progress for too long."""
        with self._changed:
            deadline, before = self.deadline(), self._progress()
            while self.shelf.waiting or self.purge.active() or self.shelf.free_doomed():
                self._changed.wait(max(0.0, deadline - time.monotonic()))
                self._raise_error()
                if before != (before := self._progress()):
                    deadline = self.deadline()
                elif time.monotonic() >= deadline:
                    raise self._failure("cannot be written", self._trouble)

    def memory_bytes(self) -> int:
        filters = sum(database.keys.num_bytes() for database in self.shelf.databases())
        return filters + (self._child.num_bytes if self._child is not None else 0)

    def close(self) -> None:
        """Ends without writing what waits, and removes the folder: nothing in it outlives its owner."""
        if os.getpid() != self._owner:  # a fork's copy: process and folder are another's
            return
        with self._changed:
            self._closing = True
            if self._child is not None:
                self._child.kill()
            self._changed.notify_all()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _over(self) -> bool:
        return self._error is not None or self._closing

    def _raise_error(self) -> None:
        if os.getpid() != self._owner:
            raise SpillError(f"the spill in {self.folder} belongs to another process, which forked this one")
        if self._error is not None:
            raise self._failure("has failed", str(self._error)) from self._error
        if self._closing:
            raise SpillError(f"the spill in {self.folder} is closed")

    def _failure(self, what: str, why: str) -> SpillError:
        return SpillError(f"the spill in {self.folder} {what}: {advised(why or 'it is too slow')}")

    def _progress(self) -> object:
        return len(self.shelf.waiting), len(self.shelf.doomed), self.purge.progress()

    # the keeper's thread

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                try:
                    self._work()
                    self._trouble, self._pause = "", FIRST_PAUSE
                except (ChildLostError, FailedError) as error:
                    if isinstance(error, FailedError) and error.final:
                        raise
                    self._stumble(str(error))
        except BaseException as error:  # told to the next caller
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            if self._child is not None:
                self._child.close()

    def _wait_for_work(self) -> bool:
        """Whether there is any; False when it is time to end."""

        def has_work() -> bool:
            revive = self._wanted and not self._alive()
            return revive or bool(self.shelf.waiting or self.purge.active() or self.shelf.free_doomed())

        with self._changed:
            pause = self._paused_until - time.monotonic()
            if pause > 0:
                self._changed.wait_for(lambda: self._closing, pause)
            self._changed.wait_for(lambda: self._closing or has_work())
            return not self._closing

    def _stumble(self, why: str) -> None:
        with self._changed:
            self._trouble = why
            self._paused_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _work(self) -> None:
        """A step of each kind that there is: a full disk keeps nobody from destroying."""
        troubles = []
        for step in (self._destroy_doomed, self._revive, self._write_oldest, self._purge_some):
            try:
                step()
            except FailedError as error:
                if error.final:
                    raise
                troubles.append(error)
        if troubles:
            raise troubles[0]

    def _alive(self) -> bool:
        return self._child is not None and not self._child.lost

    def _revive(self) -> None:
        if self._wanted and not self._alive():
            self._living_child()

    def _living_child(self) -> SpillChild:
        if self._child is not None and not self._child.lost:
            return self._child
        if self._child is not None:
            self._child.close()
        child = SpillChild(self.folder, self.form.num_bytes)
        with self._changed:
            self._child, self._wanted = child, False
            self.counts["spill_starts"] += 1
        child.keeper.call(deadline=self.deadline())
        with self._changed:
            self._changed.notify_all()
        return child

    def _write_oldest(self) -> None:
        if not self.shelf.waiting:
            return
        generation, block = self.shelf.waiting[0]
        if not generation.gone:
            if not generation.databases:
                self.shelf.add_database(generation)
            self._write(generation.databases[-1], block)
        self.shelf.pop()

    def _write(self, database: Database, block: Block) -> None:
        child = self._living_child()
        lane = child.keeper
        database.keys.add(block.mixed)
        for start in range(0, len(block), child.num_keys):
            part = block.part(start, start + child.num_keys)
            self.form.pack_keys(part.mixed, part.features, lane.keys(len(part)))
            if part.rows is not None:
                self.form.pack(part.rows, part.mixed, lane.records(len(part)))
            request = "write", database.number, len(part), part.rows is None, not database.exists
            try:
                lane.call(*request, deadline=self.deadline())
            except FailedError:
                self.counts["spill_failures"] += 1
                raise
            database.exists = True
        if block.rows is None:
            database.num_marks += len(block)
        else:
            database.ages.add(block.features, block.rows.last_seen)
        self.counts["spill_written"] += len(block)

    def _destroy_doomed(self) -> None:
        for database in self.shelf.free_doomed():
            if self._child is not None and not self._child.lost:
                self._child.keeper.call("destroy", database.number, deadline=self.deadline())
            else:
                shutil.rmtree(self.folder / f"{database.number:06d}", ignore_errors=True)
            self.shelf.forget_doomed(database)

    def _purge_some(self) -> None:
        self.purge.step(self._living_child, self.deadline)
