"""Random schedules of trainers, fenced trainers, compactors, followers, kills and power losses, beside a dictionary.

The rules of the protocol were found with an executable model; this runs the same schedules on real files.
"""

import os
import random
from pathlib import Path

import pytest

import springtide.app.version_log.write.epoch
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention, complete_bases
from springtide.app.version_log.write.segment_writer import SegmentWriter
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.log.base import Base
from springtide_client.log.cursor import LogCursor
from springtide_client.log.listing import segment_name
from springtide_client.rows.row_layer import RowLayer, merge_layers, record_layer
from tests.support.records import encode_record
from tests.support.waiting import wait_until
from tests.support.writer_log import WriterLog, row_tensors, rows_of

Rows = dict[tuple[int, int], tuple[float, int]]


class Follower:
    """Reads by the rules for readers, and starts again from a base when they say so."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.layer: RowLayer | None = None
        self.cursor: LogCursor | None = None

    def restart(self) -> None:
        self.close()
        base = self.simulation.log.directory.open_base()
        if base is not None:
            self.layer, self.cursor = base.main.layer, self.simulation.log.directory.follow(base.tip)

    def read(self) -> None:
        if self.cursor is None or self.layer is None:
            return self.restart()
        try:
            for record in self.cursor.read(self.simulation.random.choice([1, 1 << 20])):
                self.layer = merge_layers(self.layer, record_layer(record.tensors(), 2, 1))
        except (GapError, CorruptRecordError):
            self.restart()
        if self.cursor is not None and self.layer is not None and self.cursor.tip is not None:
            assert rows_of(self.layer) == self.simulation.expected[self.cursor.tip], "a follower has rows of no version"
        return None

    def close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()


class Simulation:
    """The disk, the processes, and what every version must hold."""

    def __init__(self, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.log = WriterLog(path)
        self.synced: dict[str, int] = {}
        self.expected: dict[Tip, Rows] = {}
        self.rows: Rows = {}
        self.durable = 0
        self.writer: LogWriter | None = None
        self.fenced: list[LogWriter] = []
        self.followers = [Follower(self), Follower(self)]
        self._watch_fsync(monkeypatch)

    def _watch_fsync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sync_own, sync_sealed = SegmentWriter.sync, springtide.app.version_log.write.epoch.sync_file

        def note(path: Path) -> None:
            if path.exists():
                self.synced[path.name] = max(self.synced.get(path.name, 0), path.stat().st_size)

        def own(segments: SegmentWriter) -> None:
            if segments._count:
                note(self.log.path / segment_name(segments._epoch, segments._count - 1))
            sync_own(segments)

        def sealed(path: Path) -> None:
            note(path)
            sync_sealed(path)

        monkeypatch.setattr(SegmentWriter, "sync", own)
        monkeypatch.setattr(springtide.app.version_log.write.epoch, "sync_file", sealed)

    def start(self) -> None:
        if self.writer is not None:
            if self.random.random() < 0.8:
                return
            self.fenced.append(self.writer)
        self.writer = self.log.open(take_over=self.writer is not None, segment_bytes=1 << 16)
        assert self.writer.start_tip is not None
        assert self.writer.start_tip.number >= self.durable, "a durable version is lost"
        self.durable = self.writer.start_tip.number
        self.expected.setdefault(self.writer.first_base_tip, {})
        self.rows = dict(self.expected[self.writer.start_tip])

    def append(self) -> None:
        if self.writer is None:
            return
        keys = [(self.random.randrange(2), self.random.randrange(6)) for _ in range(3)]
        rows = {key: (float(self.random.randrange(1, 999)), 1) for key in keys[:2]}
        for key in keys[2:]:
            self.rows.pop(key, None)
        self.rows |= rows
        padding = {"padding": "x" * self.random.choice([0, 0, 30_000])}
        tip = self.writer.append(VersionMeta(trainer=padding), row_tensors(rows, keys[2:]))
        self.expected[tip] = dict(self.rows)
        wait_until(lambda: self.writer is not None and self.writer.published == tip)

    def sync(self) -> None:
        if self.writer is not None:
            self.writer.sync()
            assert self.writer.durable is not None
            self.durable = self.writer.durable.number

    def write_fenced(self) -> None:
        """Write with a fenced trainer that checked for a higher epoch just before."""
        if self.fenced:
            writer = self.random.choice(self.fenced)
            assert writer.last_encoded is not None
            number = writer.last_encoded.number + self.random.randrange(1, 3)
            rows = row_tensors({(0, 1): (-5.0, 1)})
            frame, _ = encode_record(
                writer.epoch, number, writer.last_encoded.checksum, VersionMeta(durable=number), rows
            )
            writer._queue.segments._torn = self.random.random() < 0.2
            writer._queue.segments.write(frame)

    def tear(self) -> None:
        """Leave half a record, as a kill does."""
        if self.writer is not None:
            self.kill()
            segments = sorted(self.log.path.glob(f"seg-{self.log.directory.scan().claimed_epoch:010d}-*"))
            if segments:
                with segments[-1].open("ab") as file:
                    frame, _ = encode_record(9, 9 << 32, 9, VersionMeta(), {})
                    file.write(frame[: self.random.randrange(len(frame))])

    def kill(self) -> None:
        if self.writer is not None:
            self.log.kill(self.writer)
            self.writer = None

    def lose_power(self) -> None:
        self.kill()
        while self.fenced:
            self.log.kill(self.fenced.pop())
        for path in self.log.path.glob("seg-*"):
            size = path.stat().st_size
            os.truncate(path, self.random.randint(min(size, self.synced.get(path.name, 0)), size))

    def compact(self) -> None:
        path = compact_log(
            self.log.directory,
            window_samples=5,
            max_replayed_bytes=self.random.choice([1, 1 << 20]),
            base_files=self.random.choice([1, 3]),
        )
        if path is not None:
            base = Base.open(path)
            assert rows_of(base.main.layer) == self.expected[base.tip], "a base differs from its version"
            assert base.tip.number <= self.durable, "a base has a version that is not durable"

    def apply_retention(self) -> None:
        apply_retention(self.log.directory, self.random.choice([1, 2, 2, 2]))

    def damage(self) -> None:
        """Damage the newest of several bases."""
        bases = complete_bases(self.log.directory)
        if len(bases) > 1:
            (bases[-1] / "manifest.json").write_bytes(b"{")

    def follow(self) -> None:
        self.random.choice(self.followers).read()

    def check(self) -> None:
        """Check that a reader that starts now gets the right rows, at least up to what was durable."""
        if not self.log.directory.scan().is_settled:
            return
        base = self.log.directory.open_base()
        if base is None:
            return
        layer, tip = base.main.layer, base.tip
        for record in self.log.directory.records(base.tip):
            layer, tip = merge_layers(layer, record_layer(record.tensors(), 2, 1)), record.tip
        assert rows_of(layer) == self.expected[tip]
        assert tip.number >= self.durable
        if self.writer is not None:
            assert tip == self.writer.published

    def end(self) -> None:
        for writer in (self.writer, *self.fenced):
            if writer is not None:
                self.log.kill(writer)
        for follower in self.followers:
            follower.close()


STEPS = {
    "start": 8,
    "append": 20,
    "sync": 10,
    "write_fenced": 4,
    "tear": 1,
    "kill": 2,
    "lose_power": 1,
    "compact": 8,
    "apply_retention": 5,
    "damage": 1,
    "follow": 15,
}


@pytest.mark.parametrize("seed", range(30))
def test_readers_see_only_real_versions_after_any_schedule(tmp_path, monkeypatch, seed: int) -> None:
    simulation = Simulation(tmp_path / "log", seed, monkeypatch)
    try:
        simulation.start()
        for name in simulation.random.choices(list(STEPS), list(STEPS.values()), k=80):
            getattr(simulation, name)()
            simulation.check()
        simulation.start()
        simulation.append()
        simulation.sync()
        for follower in simulation.followers:
            wait_until(
                lambda follower=follower: (follower.read(), follower.cursor.tip == simulation.writer.last_encoded)[1]
            )
        simulation.check()
    finally:
        simulation.end()
