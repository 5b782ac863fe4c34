"""Random schedules of teams of writers, fenced teams, compactors, followers, kills, power losses, beside a dictionary.

One trainer is a team of one. A power loss takes a different part of every writer's files. The rules of the protocol
were found with an executable model (`tests/torture/commit_protocol/model`); this runs such schedules on real files.
"""

import os
import random
from pathlib import Path

import pytest

import springtide.app.version_log.write.epoch
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention, complete_bases
from springtide.app.version_log.write.segment_writer import SegmentWriter
from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import Base
from springtide_client.log.cursor import LogCursor
from springtide_client.rows.layers import merge_layers, record_layer
from springtide_client.rows.row_block import RowBlock
from tests.support.records import encode_record
from tests.support.waiting import wait_until
from tests.support.writer_log import SCHEMA, Key, Row, Team, WriterLog, rows_of

Rows = dict[Key, Row]


class Follower:
    """Reads by the rules for readers, and starts again from a base when they say so."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.layer: RowBlock | None = None
        self.cursor: LogCursor | None = None

    def restart(self) -> None:
        self.close()
        base = self.simulation.log.directory.open_base()
        if base is not None:
            self.layer, self.cursor = base.main.layer, self.simulation.log.directory.follow(base.tip)

    def read(self) -> None:
        if self.cursor is None or self.layer is None:
            self.restart()
            return
        try:
            for record in self.cursor.read(self.simulation.random.choice([1, 1 << 20])):
                self.layer = merge_layers(self.layer, record_layer(record.tensors(), 2, 1))
        except (GapError, CorruptRecordError):
            self.restart()
        assert self.cursor.tip is not None
        expected = self.simulation.expected[self.cursor.tip.number]
        assert rows_of(self.layer) == expected, "a follower has rows of no version"

    def close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()


class Simulation:
    """The disk, the teams, and what every version must hold."""

    def __init__(self, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.log = WriterLog(path)
        self.synced: dict[str, int] = {}
        self.expected: dict[int, Rows] = {}
        self.rows: Rows = {}
        self.durable = 0
        self.team: Team | None = None
        self.fenced: list[Team] = []
        self.followers = [Follower(self), Follower(self)]
        self._watch_fsync(monkeypatch)

    def _watch_fsync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sync_own, sync_past = SegmentWriter.sync, springtide.app.version_log.write.epoch.sync_file

        def note(path: Path) -> None:
            if path.exists():
                self.synced[path.name] = max(self.synced.get(path.name, 0), path.stat().st_size)

        def own(segments: SegmentWriter) -> None:
            if segments._file is not None:
                note(Path(os.readlink(f"/proc/self/fd/{segments._file.descriptor}")))
            sync_own(segments)

        def past(path: Path) -> None:
            note(path)
            sync_past(path)

        monkeypatch.setattr(SegmentWriter, "sync", own)
        monkeypatch.setattr(springtide.app.version_log.write.epoch, "sync_file", past)

    def start(self) -> None:
        if self.team is not None:
            if self.random.random() < 0.7:
                return
            self.fenced.append(self.team)
        size = self.random.choice([1, 1, 1, 2, 2, 3])
        self.team = self.log.start(size, take_over=self.team is not None, segment_bytes=1 << 16)
        tip = self.team.lead.start_tip
        assert tip is not None
        assert tip.number >= self.durable, "a durable version is lost"
        self.durable = tip.number
        self.expected.setdefault(self.team.lead.first_base_tip.number, {})
        self.rows = dict(self.expected[tip.number])

    def append(self) -> None:
        if self.team is None:
            return
        rows = {(f, self.random.randrange(9)): (float(self.random.randrange(1, 999)), 1) for f in (0, 1)}
        gone = [(0, self.random.randrange(9))]
        if self.random.random() < 0.3:  # so much that a file is full
            rows |= {(1, 1000 + n): (float(self.random.randrange(1, 999)), 1) for n in range(900)}
        gone = [key for key in gone if key not in rows]
        self.rows = {key: row for key, row in self.rows.items() if key not in gone} | rows
        if self.random.random() < 0.1:  # an append may be repeated in a new file
            self.random.choice(self.team.writers)._queue.segments._torn = True
        number = self.team.put(rows, gone)
        self.expected[number] = dict(self.rows)
        lead = self.team.lead
        wait_until(lambda: lead.published is not None and lead.published.number == number)

    def append_in_part(self) -> None:
        """All ranks but one have written their part when the team dies."""
        if self.team is not None and len(self.team.writers) > 1:
            last = self.random.randrange(len(self.team.writers))
            for rank, writer in enumerate(self.team.writers):
                if rank != last:
                    writer.append_owned(VersionMeta(fingerprint=SCHEMA.fingerprint()), {})
            self.kill()

    def sync(self) -> None:
        if self.team is not None:
            self.team.sync()
            assert self.team.lead.durable is not None
            self.durable = self.team.lead.durable.number

    def sync_one(self) -> None:
        """One writer fsyncs, and others not."""
        if self.team is not None:
            self.random.choice(self.team.writers)._queue._sync()
            assert self.team.lead.durable is not None
            self.durable = self.team.lead.durable.number  # the last report may make a version durable

    def write_as_fenced(self) -> None:
        """A team that was replaced writes on, and does not look for a higher epoch."""
        if self.fenced:
            fenced = self.random.choice(self.fenced)
            for writer in fenced.writers:
                writer.directory.is_fenced = lambda epoch: False  # type: ignore[method-assign]
            if all(writer._queue.failure is None for writer in fenced.writers):
                fenced.put({(0, 1): (-5.0, 1), (1, 2): (-6.0, 1)}, durable=fenced.lead.last_number)
                if self.random.random() < 0.5:
                    wait_until(lambda: not fenced.lead._queue)

    def kill(self) -> None:
        if self.team is not None:
            self.log.kill_team(self.team)
            self.team = None

    def lose_power(self) -> None:
        self.kill()
        while self.fenced:
            self.log.kill_team(self.fenced.pop())
        for path in self.log.path.glob("seg-*"):
            size = path.stat().st_size
            os.truncate(path, self.random.randint(min(size, self.synced.get(path.name, 0)), size))

    def tear(self) -> None:
        """Leave half a record, as a kill does."""
        if self.team is not None:
            self.kill()
            segments = sorted(self.log.path.glob(f"seg-{self.log.directory.scan().claimed_epoch:010d}-*"))
            if segments:
                with segments[-1].open("ab") as file:
                    frame, _ = encode_record(9, 9 << 32, 9, VersionMeta(), {})
                    file.write(frame[: self.random.randrange(len(frame))])

    def damage(self) -> None:
        """Damage the newest of several bases."""
        bases = complete_bases(self.log.directory)
        if len(bases) > 1:
            (bases[-1] / "manifest.json").write_bytes(b"{")

    def compact(self) -> None:
        path = compact_log(
            self.log.directory,
            window_samples=5,
            max_replayed_bytes=self.random.choice([1, 1 << 20]),
            base_files=self.random.choice([1, 3]),
        )
        if path is not None:
            base = Base.open(path)
            assert self.log.rows_in(base) == self.expected[base.tip.number], "a base differs from its version"
            assert base.tip.number <= self.durable, "a base has a version that is not durable"

    def apply_retention(self) -> None:
        apply_retention(self.log.directory, self.random.choice([1, 2, 2, 2]))

    def follow(self) -> None:
        self.random.choice(self.followers).read()

    def check(self) -> None:
        """Check that a reader that starts now gets the right rows, at least up to what was durable."""
        if not self.log.directory.scan().is_settled:
            return
        if self.log.directory.open_base() is None:
            return
        tip, rows = self.log.read()
        assert rows == self.expected[tip.number]
        assert tip.number >= self.durable
        if self.team is not None:
            assert tip == self.team.lead.published

    def end(self) -> None:
        for team in (self.team, *self.fenced):
            if team is not None:
                self.log.kill_team(team)
        for follower in self.followers:
            follower.close()


STEPS = {
    "start": 8,
    "append": 20,
    "append_in_part": 1,
    "sync": 8,
    "sync_one": 8,
    "write_as_fenced": 4,
    "kill": 2,
    "lose_power": 2,
    "tear": 1,
    "damage": 1,
    "compact": 8,
    "apply_retention": 5,
    "follow": 15,
}


@pytest.mark.parametrize("seed", range(20))
def test_readers_see_only_whole_real_versions_after_any_schedule(tmp_path, monkeypatch, seed: int) -> None:
    simulation = Simulation(tmp_path / "log", seed, monkeypatch)
    try:
        simulation.start()
        for name in simulation.random.choices(list(STEPS), list(STEPS.values()), k=70):
            getattr(simulation, name)()
            simulation.check()
        simulation.start()
        simulation.append()
        simulation.sync()
        for follower in simulation.followers:
            wait_until(
                lambda follower=follower: (follower.read(), follower.cursor.tip == simulation.team.lead.published)[1]
            )
        simulation.check()
    finally:
        simulation.end()
