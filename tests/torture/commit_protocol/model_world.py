"""A log of a few keys with the real writers, compactor, command queue and readers, beside a model of dictionaries.

A trainer is a team of one or several ranks, each with its writer. Everything happens in this process, one step after
another. A crash may come before any disk operation (fsync, rename,
unlink, rmdir), and keeps or loses what was not fsynced as its profile says.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from springtide.app.version_log.commands.queue import CommandQueue, submit_command
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention, complete_bases
from springtide.app.version_log.read.replay_state import Resume
from springtide.app.version_log.write.state_writer import PendingState
from springtide.app.version_log.write.writer import LogWriter, NetState
from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import (
    CommandEntry,
    Head,
    Record,
    ShardEntry,
    VersionMeta,
    encode_pieces,
    encode_shard_pieces,
)
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.log.cursor import LogCursor
from springtide_client.rows.layers import merge_layers, record_layer
from springtide_client.rows.row_block import RowBlock
from tests.support.waiting import wait_until
from tests.support.writer_log import SCHEMA, Team, WriterLog, rows_of
from tests.torture.disk.fsync_recorder import FsyncRecorder
from tests.torture.disk.power_loss import CrashedDisk, LossProfile

CARRIED, PARAMETERS = "state.random", "state.parameters.net"
Rows = dict[tuple[int, int], tuple[float, int]]


@dataclass(frozen=True)
class ExpectedState:
    """What a version must hold: rows, the commands executed so far, the exact state of the net: one number."""

    rows: Rows = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    net: float = 0.0


def net_of(state: Arrays) -> float:
    """Return the exact state of the net; 0 before the first."""
    return float(next((state[name][0] for name in (PARAMETERS, CARRIED) if name in state), 0.0))


def is_written(writer: LogWriter, number: int) -> bool:
    """Return True once a writer has written its record of a version, or fails to."""
    head = writer._queue.published
    return writer._queue.failure is not None or (head is not None and head.number >= number)


class Reader:
    """A reader on another machine: it keeps what it has read, even if a power loss removes that from the log."""

    def __init__(self, world: "ModelWorld") -> None:
        self.world = world
        self.layer: RowBlock | None = None
        self.cursor: LogCursor | None = None

    def read(self, limit_bytes: int = 1 << 20) -> None:
        if self.cursor is None or self.layer is None:
            self._begin()
            return
        try:
            for record in self.cursor.read(limit_bytes):
                self.layer = merge_layers(self.layer, record_layer(record.tensors(), 2, 1))
        except (GapError, CorruptRecordError):
            self._begin()
        if self.cursor.head is not None and self.layer is not None:
            assert rows_of(self.layer) == self.world.expected[self.cursor.head].rows, (
                "a reader holds a state that never existed"
            )

    def _begin(self) -> None:
        self.close()
        base = self.world.log.directory.open_base()
        if base is not None:
            self.layer, self.cursor = base.main.layer, self.world.log.directory.follow(base.head)

    def close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()


class ModelWorld:
    """Runs each step in the real log and in the model, and compares them."""

    def __init__(self, folder: Path) -> None:
        self.record_folder = folder / "record"
        self.recorder = FsyncRecorder(folder / "disk", self.record_folder)
        (folder / "disk").mkdir()
        self.recorder.install()
        self.recorder.record_all()
        self.log = WriterLog(folder / "disk" / "a" / "log")
        self.expected: dict[Head, ExpectedState] = {}
        self.submitted: set[str] = set()
        self.team: Team | None = None
        self.fenced_teams: list[Team] = []
        self.readers = [Reader(self), Reader(self)]
        self.sealed = self.newest_number = 0
        self.is_carried = True  # every version so far carries the exact state of the net
        self.num_ranks = 1
        self.steps = 0

    @property
    def writer(self) -> LogWriter | None:
        """The writer of rank 0."""
        return self.team.lead if self.team is not None else None

    @property
    def durable_number(self) -> int:
        durable = self.writer.durable if self.writer is not None else None
        return max(self.sealed, durable.number if durable else 0)

    def start(self, num_ranks: int = 0) -> None:
        """Start a trainer; one that runs already is fenced, and may still write. 0 ranks: as many as the last had."""
        self.num_ranks = num_ranks or self.num_ranks
        self.sealed = before = self.durable_number  # holds also if a crash comes before the new trainer runs
        if self.team is not None:
            self.fenced_teams.append(self.team)
        self.team = None
        self.team = self.log.start(self.num_ranks, take_over=bool(self.fenced_teams), segment_bytes=1 << 16)
        writer = self.team.lead
        assert writer.start_head is not None
        assert writer.start_head.number >= before, f"{before} was durable, the log ends at {writer.start_head.number}"
        assert writer.first_base_head.number > self.newest_number, "a version number is used twice"
        self.expected.setdefault(writer.first_base_head, ExpectedState())
        self.newest_number = max(self.newest_number, writer.first_base_head.number)
        self.sealed = writer.start_head.number
        resume = Resume.of(self.log.directory, writer.start_head)
        assert resume is not None
        net = net_of(resume.base.trainer_state)
        for record in resume.records():
            net = record.tensors()[CARRIED][0] if CARRIED in record.tensors() else net
        if resume.meta.exact_state > resume.base.head.number:
            net = net_of(resume.read_state(resume.meta.exact_state))
        self.now = self.expected[writer.start_head]
        assert net == self.now.net, "the net is not as it was at this version"
        assert set(resume.executed_commands) == set(self.now.commands)
        self.commands = CommandQueue(self.log.path, writer.epoch, resume.executed_commands)

    def append(
        self,
        rows: Rows,
        forgotten: list[tuple[int, int]],
        padding: int = 0,
        net: str = "carried",
        torn_rank: int | None = None,
    ) -> None:
        """Append a version that executes the queued commands.

        `net`: "carried", if the version carries the exact state of the net, "file", if it is written beside the log,
        or "none"; one that carries a command has a state. `torn_rank`: of one whose append is repeated in a new file.
        """
        if self.team is None:
            self.start()
        assert self.team is not None
        self.is_carried &= net == "carried"
        if torn_rank is not None:
            self.rank(torn_rank)._queue.segments._torn = True
        claimed = [command.id for command in self.commands.claim()]
        assert not set(claimed) & set(self.now.commands), "a command is executed twice"
        rows = {key: row for key, row in rows.items() if key not in forgotten}
        kept = {key: row for key, row in self.now.rows.items() if key not in forgotten}
        self.now = ExpectedState(kept | rows, (*self.now.commands, *claimed), self.now.net + 1.0)
        meta = VersionMeta(
            trainer={"padding": "x" * padding}, executed_commands=[CommandEntry(id=id) for id in claimed]
        )
        writer, *others = self.team.writers
        for other in others:  # one after the other: a crash comes between two operations
            number = other.append_owned(VersionMeta(), self.team.share(other.rank, rows, forgotten))
            wait_until(lambda: is_written(other, number))  # noqa: B023
        tensors, state = self.team.share(0, rows, forgotten), NetState(is_exact=False)
        if net == "carried":
            tensors, state = tensors | {CARRIED: np.array([self.now.net])}, NetState()
        elif net == "file" or claimed:
            state = NetState(PendingState({PARAMETERS: np.array([self.now.net])}))
        number = writer.append_owned(meta, tensors, state)
        head = self._encoded(number)
        self.expected[head] = self.now
        self.newest_number = head.number
        for command_id in claimed:
            self.commands.mark_executed(command_id, head.number)
        wait_until(lambda: is_written(writer, number))
        if state.state is not None:
            writer.wait_for_state()  # nothing else moves the disk meanwhile

    def rank(self, number: int) -> LogWriter:
        """Return the writer of a rank; more than there are begin again with rank 0."""
        assert self.team is not None
        return self.team.writers[number % len(self.team.writers)]

    def die_in_an_append(self, missing_rank: int) -> None:
        """All ranks but one have written their part of a version when the team dies."""
        if self.team is None or len(self.team.writers) == 1:
            return
        self.sealed = self.durable_number
        for writer in self.team.writers:
            if writer is not self.rank(missing_rank):
                writer.append_owned(VersionMeta(fingerprint=SCHEMA.fingerprint()), {})
        self.log.kill_team(self.team)
        self.team = None

    def sync_one(self, rank: int) -> None:
        """One rank fsyncs, and the others do not; the last report may make a version durable."""
        if self.team is not None:
            self.rank(rank)._queue._sync()

    def damage(self) -> None:
        """Damage the newest of several bases; where a state is in it alone, more than that would be lost."""
        bases = complete_bases(self.log.directory)
        if len(bases) > 1 and self.is_carried:
            (bases[-1] / "manifest.json").write_bytes(b"{")

    def _encoded(self, number: int) -> Head:
        writer = self.writer
        assert writer is not None
        wait_until(lambda: writer.last_encoded is not None and writer.last_encoded.number == number)
        assert writer.last_encoded is not None
        return writer.last_encoded

    def sync(self) -> None:
        if self.team is not None:
            for other in self.team.writers[1:]:
                other._queue._sync()
            self.team.lead.sync()
            assert self.team.lead.durable is not None
            self.commands.acknowledge(self.team.lead.durable.number)

    def compact(self, max_replayed_bytes: int = 1 << 20, base_files: int = 1) -> None:
        path = compact_log(
            self.log.directory, window_samples=5, max_replayed_bytes=max_replayed_bytes, base_files=base_files
        )
        if path is not None:
            base = Base.open(path)
            base.verify()
            truth = self.expected[base.head]
            assert rows_of(base.main.layer) == truth.rows, "a base differs from its version"
            assert {command.id for command in base.manifest.meta.executed_commands} == set(truth.commands)
            assert base.head.number <= self.durable_number, "a base of a version that is not durable"

    def retire(self, keep_bases: int = 2) -> None:
        apply_retention(self.log.directory, keep_bases)

    def submit_command(self) -> None:
        if not self.log.path.exists():
            self.start()
        self.submitted.add(submit_command(self.log.path, "forget", {}))

    def write_as_fenced_trainer(self, whole: bool) -> None:
        """A fenced trainer that was paused after its epoch check appends a version, or half of its last record."""
        for team in self.fenced_teams:
            fenced, *others = team.writers
            last = fenced.last_encoded
            assert last is not None
            number, rows, entries = last.number + 1, {(0, 1): (-5.0, 1)}, []
            for other in others:
                pieces, checksum = encode_shard_pieces(
                    fenced.epoch, number, other.rank, team.share(other.rank, rows, [])
                )
                other._queue.segments.write([b"".join(pieces)])
                entries.append(ShardEntry(other.rank, checksum))
            tensors = team.share(0, rows, [])
            pieces, _ = encode_pieces(
                fenced.epoch, number, last.checksum, VersionMeta(durable=number), tensors, entries
            )
            frame = b"".join(pieces)
            fenced._queue.segments.write([frame if whole else frame[:50]])

    def crash(self, profile: LossProfile, draw: random.Random, countdown: int, during: Callable[[], None]) -> None:
        """Crash before the `countdown`-th disk operation of `during`, or at its end."""
        planned: list[tuple[CrashedDisk, int, int, set[str]]] = []

        def count() -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                planned.append(self._plan(profile, draw))

        self.recorder.before_each = count
        try:
            during()
        finally:
            self.recorder.before_each = lambda: None
        crashed_disk, promised, newest, submitted = planned[0] if planned else self._plan(profile, draw)
        self.kill_all()
        crashed_disk.make()
        # what came after the crash never happened
        self.sealed, self.newest_number, self.submitted = promised, newest, submitted
        self.check()

    def _plan(self, profile: LossProfile, draw: random.Random) -> tuple[CrashedDisk, int, int, set[str]]:
        crashed_disk = CrashedDisk(self.recorder, self.record_folder, profile, draw)
        return crashed_disk, self.durable_number, self.newest_number, set(self.submitted)

    def kill_all(self) -> None:
        """Kill every trainer."""
        for team in (self.team, *self.fenced_teams):
            if team is not None:
                self.log.kill_team(team)
        self.team, self.fenced_teams = None, []

    def check(self) -> None:
        """A new reader gets an expected state, and no durable version is missing."""
        if not self.log.directory.scan().is_settled:
            return
        base = self.log.directory.open_base()
        if base is None:
            assert self.durable_number == 0, "all bases are lost"
            return
        layer, head = base.main.layer, base.head
        for record in self.records_after(base):
            layer, head = merge_layers(layer, record_layer(record.tensors(), 2, 1)), record.head
        assert rows_of(layer) == self.expected[head].rows
        assert head.number >= self.durable_number, f"{self.durable_number} was durable, readers end at {head.number}"
        if self.writer is not None:
            assert head == self.writer.published

    def records_after(self, base: Base) -> list[Record]:
        """Return the records that can be read; the torn end of a dead trainer's last segment is allowed."""
        records: list[Record] = []
        try:
            records.extend(self.log.directory.records(base.head))
        except CorruptRecordError:
            assert self.writer is None, "a running trainer's log is corrupt"
        return records

    def finish(self) -> None:
        """Start a last trainer: every command must be executed once, every reader must reach the end."""
        self.start()
        self.append({(0, 0): (1.0, 1)}, [])
        self.sync()
        assert self.submitted <= set(self.now.commands), "a command is lost"
        assert len(self.now.commands) == len(set(self.now.commands))
        for reader in self.readers:
            for _ in range(20):
                reader.read()
            assert reader.cursor is not None
            assert self.writer is not None
            assert reader.cursor.head == self.writer.last_encoded, "a reader does not reach the end"
        self.check()

    def close(self) -> None:
        self.kill_all()
        for reader in self.readers:
            reader.close()
        self.recorder.remove()
