"""What a trainer of a joined stream learns, sample by sample, in a file; and the join's own failpoints.

`install` is called in a trainer's process before it begins. It watches the join, the batcher, the training state and
the publisher from outside: none of them knows of it.
"""

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from springtide.app.training.batches import BatchStream
from springtide.app.training.publisher import Publisher
from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.failpoints import VARIABLE, failpoint
from springtide.stream.batcher import Batcher
from springtide.stream.join.label_join import LabelJoin
from springtide.stream.join.partition_clock import PartitionClock
from springtide.stream.join_state import FIRST_PLACE, JoinState, SamplePlaces
from springtide.stream.positions import Partition

WHILE_READING_AGAIN = "while the join reads again"
WITHIN_A_MILLISECOND = "between two samples of a millisecond"
AFTER_AN_IDLE_MARK, AFTER_A_FLOOR = "after an idle mark", "after a floor"
AFTER_A_VERSION_WITH_AN_IDLE_MARK = "after a version with an idle mark"
AFTER_A_VERSION_WITH_A_FLOOR = "after a version with a floor"
JOIN_POINTS = (
    WHILE_READING_AGAIN,
    WITHIN_A_MILLISECOND,
    AFTER_AN_IDLE_MARK,
    AFTER_A_FLOOR,
    AFTER_A_VERSION_WITH_AN_IDLE_MARK,
    AFTER_A_VERSION_WITH_A_FLOOR,
)
VARIABLE_OF_FILE = "SPRINGTIDE_JOIN_RECORD"

Floor = tuple[str, Partition, int]  # cursor, partition, offset


@dataclass
class Life:
    """What one process learned, up to where it was killed: more than its newest version, as a rule."""

    first_sample: int = 0  # samples in the version that it began with
    began_with: JoinState | None = None
    samples: list[dict[str, np.ndarray[Any, Any]]] = field(default_factory=list)
    versions: list[tuple[int, JoinState]] = field(default_factory=list)
    floors: dict[Floor, int] = field(default_factory=dict)
    num_idle_marks: int = 0
    num_read_again: int = 0

    def columns(self, num: int) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of the first `num` samples."""
        if not self.samples:
            return {}
        found = {name: np.concatenate([part[name] for part in self.samples])[:num] for name in self.samples[0]}
        assert len(found["due_ms"]) == num
        return found

    @property
    def num_samples(self) -> int:
        return sum(len(part["due_ms"]) for part in self.samples)


def read_life(path: Path) -> Life | None:
    """Read what a process recorded; None if it did not come to its first record."""
    life = None
    for kind, *values in _entries(path):
        if kind == "start":
            assert life is None, "a source was opened twice"
            life = Life(values[0], msgspec.json.decode(values[1], type=JoinState | None))
            continue
        assert life is not None
        if kind == "learned":
            life.samples.append(values[0])
        elif kind == "version":
            life.versions.append((values[0], msgspec.json.decode(values[1], type=JoinState)))
        elif kind == "floor":
            life.floors[values[0], Partition(*values[1]), values[2]] = values[3]
        elif kind == "idle":
            life.num_idle_marks += 1
        else:
            life.num_read_again += 1
    return life


def _entries(path: Path) -> Iterator[tuple[Any, ...]]:
    """All entries; the last one may be cut off by a kill."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return


class Recorder:
    """Appends to a file, an entry a write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._built: deque[SamplePlaces] = deque()  # of samples that are added to the batcher and not learned
        self._woken: list[tuple[PartitionClock, int, int]] = []
        self._last_ms: int | None = None  # of the newest sample of the newest version
        self._idle_in_version = self._floor_in_version = False
        self._is_reading_again = False

    def write(self, *entry: Any) -> None:
        os.write(self._file, pickle.dumps(entry, protocol=5))

    def on_open(self, samples_trained: int, join: JoinState | None) -> None:
        self.write("start", samples_trained, msgspec.json.encode(join))

    def on_add(self, places: SamplePlaces) -> None:
        if len(places.due_ms_N):
            self._built.append(places)

    def on_learn(self, batch: Any) -> None:
        """Before a batch is learned: its places and labels, and the ids of the impressions."""
        if not len(batch):
            return
        places = self._next_places(len(batch))
        if self._last_ms is not None and places.due_ms_N[0] == self._last_ms:
            failpoint(WITHIN_A_MILLISECOND)
        self._last_ms = None
        names = ("due_ms", "key_hash", "shown_ms", "partition", "offset", "window_ms")
        columns = dict(zip(names, places.columns, strict=False))  # all samples are first ones: no grade
        self.write("learned", columns | {"labels": batch.labels_NL, "ids": batch.features.categorical_NC})

    def _next_places(self, num: int) -> SamplePlaces:
        pieces = []
        while num:
            places = self._built.popleft()
            if len(places.due_ms_N) > num:
                self._built.appendleft(places.take(slice(num, None)))
                places = places.take(slice(0, num))
            num -= len(places.due_ms_N)
            pieces.append(places)
        return SamplePlaces(*map(np.concatenate, zip(*(piece.columns for piece in pieces), strict=True)))

    def on_version(self, state: TrainingState) -> None:
        if state.stream.join is None:
            return
        self.write("version", state.samples_trained, msgspec.json.encode(state.stream.join))
        marks = [mark for cursor in state.stream.join.cursors.values() for mark in cursor.values()]
        self._last_ms = state.stream.join.released.due_ms
        self._idle_in_version = any(mark.is_idle for mark in marks)
        self._floor_in_version = any(mark.floors for mark in marks)

    def on_published(self, sync: Callable[[], object]) -> None:
        """After an append; it is made durable where a kill is to follow it."""
        for holds, point in (
            (self._idle_in_version, AFTER_A_VERSION_WITH_AN_IDLE_MARK),
            (self._floor_in_version, AFTER_A_VERSION_WITH_A_FLOOR),
        ):
            if holds:
                if _is_armed(point):
                    sync()
                failpoint(point)
        if self._last_ms is not None and _is_armed(WITHIN_A_MILLISECOND):
            sync()

    def before_records(self, join: LabelJoin) -> None:
        if join.is_replaying:
            if not self._is_reading_again:
                self._is_reading_again = True
                self.write("reads again")
            failpoint(WHILE_READING_AGAIN)

    def on_wake(self, clock: PartitionClock, before: dict[int, int]) -> None:
        self._woken += [(clock, at, ms) for at, ms in clock.floors.items() if before.get(at) != ms]

    def after_records(self, join: LabelJoin) -> None:
        for clock, offset, floor_ms in self._woken:
            name, partition = next(
                (name, partition)
                for name, cursor in join._cursors.items()
                for partition, found in cursor.clocks.items()
                if found is clock
            )
            self.write("floor", name, tuple(partition), offset, floor_ms)
        if self._woken:
            self._woken = []
            failpoint(AFTER_A_FLOOR)

    def on_idle(self, join: LabelJoin, num_before: int) -> None:
        if join.released > FIRST_PLACE and _num_idle(join) > num_before:
            self.write("idle")
            failpoint(AFTER_AN_IDLE_MARK)


def _num_idle(join: LabelJoin) -> int:
    return sum(clock.is_idle for cursor in join._cursors.values() for clock in cursor.clocks.values())


def _is_armed(point: str) -> bool:
    folder = os.environ.get(VARIABLE)
    return folder is not None and (Path(folder) / point.replace(" ", "-")).exists()


def install(path: Path) -> None:
    """Record in this process from now on."""
    recorder = Recorder(path)

    def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda self, *args, **options: around(original, self, *args, **options))

    def open_stream(original: Any, stream: BatchStream, *args: Any, **options: Any) -> None:
        recorder.on_open(options["samples_trained"], options["join"])
        original(stream, *args, **options)

    def add(original: Any, batcher: Batcher, columns: Any) -> None:
        recorder.on_add(columns.joined.places_N)
        original(batcher, columns)

    def learn(original: Any, state: TrainingState, batch: Any, **options: Any) -> None:
        recorder.on_learn(batch)
        original(state, batch, **options)

    def checkpoint(original: Any, state: TrainingState, **options: Any) -> Any:
        version = original(state, **options)
        recorder.on_version(state)
        return version

    def publish(original: Any, publisher: Publisher, session: Any, **options: Any) -> bool:
        is_published: bool = original(publisher, session, **options)
        if is_published:
            recorder.on_published(session.log.sync)
        return is_published

    def add_records(original: Any, join: LabelJoin, *args: Any) -> None:
        recorder.before_records(join)
        original(join, *args)
        recorder.after_records(join)

    def wake(original: Any, clock: PartitionClock, *args: Any) -> None:
        before = dict(clock.floors)
        original(clock, *args)
        recorder.on_wake(clock, before)

    def mark_idle(original: Any, join: LabelJoin, *args: Any) -> None:
        num_before = _num_idle(join)
        original(join, *args)
        recorder.on_idle(join, num_before)

    wrap(BatchStream, "__init__", open_stream)
    wrap(Batcher, "add", add)
    wrap(TrainingState, "learn", learn)
    wrap(TrainingState, "checkpoint", checkpoint)
    wrap(Publisher, "publish", publish)
    wrap(LabelJoin, "add_impressions", add_records)
    wrap(LabelJoin, "add_events", add_records)
    wrap(PartitionClock, "wake", wake)
    wrap(LabelJoin, "mark_idle", mark_idle)
