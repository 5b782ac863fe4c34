"""A log of what a real model has learned from random clicks, by the trainer's own state, without its loop."""

from collections.abc import Iterable
from types import TracebackType

import msgspec

from springtide.app.config.load import Config
from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.commands.restore import RollbackVersion, build_rollback
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.export.snapshot_file import view_at_version
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.columns import Batch
from springtide_client.format.records import CommandEntry
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.app.training.random_clicks import make_batch


class LearnedLog:
    """A log and the state at its end: `open` reads it back as a trainer does that starts, `end` stops as one does.

    Use it in a `with`, or end it.
    """

    samples = 32  # of a batch

    def __init__(self, config: Config) -> None:
        self.config = config
        self.open()

    def open(self) -> None:
        self.log = LogWriter.open(self.config.log, schema=self.config.schema)
        try:
            self.state: TrainingState = load_state(self.config, self.log)
        except BaseException:
            self.log.close()
            raise

    @property
    def directory(self) -> LogDirectory:
        return self.log.directory

    def batch(self, number: int) -> Batch:
        """Return the random batch of this number."""
        return make_batch(number, self.samples, self.config.schema.recorded)

    def step(self, *numbers: int) -> None:
        """Learn the batches of these numbers, into no version."""
        for number in numbers:
            self.state.learn(self.batch(number))

    def learn(self, numbers: Iterable[int], *, every: int = 1, ahead: bool = False) -> list[int]:
        """Learn the batches of these numbers, every so many into a version; return the versions.

        `ahead`: each batch is learned with the one after it in sight.
        """
        versions, numbers = [], list(numbers)
        for place, number in enumerate(numbers):
            is_last = place + 1 == len(numbers)
            next_batch = self.batch(numbers[place + 1]) if ahead and not is_last else None
            self.state.learn(self.batch(number), next_batch=next_batch)
            if number % every == every - 1:
                versions.append(self.checkpoint())
        return versions

    def learn_interrupted(self) -> None:
        """Learn batches 0 to 29, every third into a version, with two restarts.

        Each restart comes after batches that are in no version, and are learned again.
        """
        for start, stop in [(0, 11), (9, 20), (18, 30)]:
            if start:
                self.restart()
            assert self.state.samples_trained == start * self.samples
            self.learn(range(start, stop), every=3, ahead=True)

    def checkpoint(self) -> int:
        """Append a version of what was learned; return its number."""
        return self.log.append(*self.state.checkpoint(created_ms=1, complete_until_ms=1)).number

    def compact(self) -> None:
        """Make a base of all that is learned."""
        self.log.sync()
        self.checkpoint()  # it says that the version before is durable
        self.log.sync()
        assert compact_log(self.directory, window_samples=self.config.train.window_samples) is not None

    def roll_back(self, number: int, id: str = "rollback", **options: int) -> RollbackVersion:
        """Append the version that goes back, by a command of this id; the state stays as it is."""
        self.log.sync()
        window_samples = self.config.train.window_samples
        rollback = build_rollback(self.directory, number, window_samples=window_samples, **options)
        entry = CommandEntry(id=id, kind="rollback", result=rollback.counts)
        self.log.append(msgspec.structs.replace(rollback.meta, executed_commands=[entry]), rollback.arrays)
        self.log.sync()
        return rollback

    def view(self) -> View:
        """Return what a follower has that has read the log to its end."""
        self.log.sync()
        view = View.open(self.directory.newest_base())
        for record in self.directory.records(view.head):
            view = view.apply(record)
        return view

    def view_at(self, number: int) -> View:
        """Return what a reader of one version has."""
        view = view_at_version(self.directory, number)
        assert view is not None
        return view

    def restart(self) -> None:
        self.end()
        self.open()

    def kill(self) -> None:
        """End as SIGKILL does: nothing more is written."""
        self.log.states.stop()
        self.log._queue.fail(RuntimeError("killed"))
        self.log._queue.stop()
        self.log._lock.release()
        self.state.learner.table.close()

    def end(self) -> None:
        """Make everything durable, and close the log and the table."""
        self.log.close()
        self.state.learner.table.close()

    def __enter__(self) -> "LearnedLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.end()


def learn_numbers(config: Config, start: int, stop: int) -> int:
    """Learn the random batches of these numbers, each into a version; return the last version's number."""
    with LearnedLog(config) as made:
        made.learn(range(start, stop))
        return made.log.last_number
