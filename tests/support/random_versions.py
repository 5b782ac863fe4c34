"""Logs of random versions, each with the rows that it must hold; in one a pinned version is far behind the others."""

import random
from types import TracebackType

from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import CommandEntry, NamedKey, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from tests.support.writer_log import SCHEMA, Key, Row, WriterLog, put, row_tensors

World = dict[Key, Row]
SEGMENT_BYTES = 1 << 16


class RandomVersions:
    """Writes versions with rows, forgotten keys and a rising expiry cutoff of feature 1.

    `features`: the numbers of those whose rows it writes.
    """

    def __init__(self, log: WriterLog, writer: LogWriter, seed: int = 3, features: tuple[int, ...] = (0, 1)) -> None:
        self.features = features
        self.log, self.writer, self.rng = log, writer, random.Random(seed)
        self.horizon = 0
        assert writer.start_head is not None
        self.worlds: dict[int, World] = {writer.start_head.number: {}}
        self.forgotten: dict[int, set[Key]] = {}
        self.ordered: dict[int, set[Key]] = {}  # those of them that a command has forgotten
        self.now: World = {}

    def write(self, num_versions: int) -> None:
        """Append random versions."""
        rng, features = self.rng, self.features
        for _ in range(num_versions):
            rows = {
                (rng.choice(features), rng.randrange(60)): (
                    float(rng.randrange(1, 99)),
                    self.horizon + rng.randrange(500),
                )
                for _ in range(rng.randrange(12))
            }
            forgotten = {(rng.choice(features), rng.randrange(60)) for _ in range(rng.randrange(3))}
            self.horizon += rng.choice([0, 0, 0, 60])
            self.now = {key: row for key, row in self.now.items() if key not in forgotten} | rows
            self.now = {key: row for key, row in self.now.items() if key[0] != 1 or row[1] >= self.horizon}
            self.append(rows, sorted(forgotten))

    def append(self, rows: World, forgotten: list[Key], more: Arrays | None = None) -> None:
        """Append a version; `now` must already hold the rows after it."""
        horizons = {"1": self.horizon} if self.horizon else {}
        ordered = {key for key in forgotten if key[0] < 2 and self.rng.random() < 0.5}
        keys = [NamedKey(("user_id", "item_id")[feature], str(row_id)) for feature, row_id in ordered]
        commands = [CommandEntry(id=f"o{len(self.worlds)}", kind="forget", keys=keys)] if keys else []
        fingerprint = SCHEMA.fingerprint()
        meta = VersionMeta(
            expiry_cutoffs=horizons,
            samples_trained=len(self.worlds),
            fingerprint=fingerprint,
            executed_commands=commands,
        )
        version = self.writer.append(meta, row_tensors(rows, forgotten) | (more or {}))
        self.worlds[version.number] = dict(self.now)
        self.forgotten[version.number], self.ordered[version.number] = set(forgotten), ordered

    def compact(self) -> Base:
        """Write a base of everything so far, and return it."""
        self.writer.sync()
        self.append({}, [])
        self.writer.sync()
        path = compact_log(self.log.directory, window_samples=100)
        assert path is not None
        return Base.open(path)


class PinnedLog:
    """Opens a writer; `rows` are those of the version `pinned`, whose pin is called `far`."""

    def __init__(self, log: WriterLog, seed: int = 1) -> None:
        self.log = log
        self.writer = log.open(segment_bytes=SEGMENT_BYTES)
        self.random = RandomVersions(log, self.writer, seed)
        self.random.write(12)
        self.writer.sync()
        self.pinned, self.rows = self.writer.last_number, dict(self.random.now)
        pin_version(log.path, "latest", "far")

    def leave_only_the_pin(self) -> None:
        """Append several segments and bases, so that nothing between the pinned version and the newest is left."""
        for _ in range(3):
            fill(self.random)
        assert not LogIndex(self.log.directory).runs.are_connected(self.pinned, self.writer.last_number)

    def __enter__(self) -> "PinnedLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.writer.close()


def fill(random_log: RandomVersions) -> None:
    """Append more than one segment, make it a base, and let retention keep nothing else."""
    random_log.write(4)
    for _ in range(3):
        random_log.now[0, 1] = (1.0, 100)
        put(random_log.writer, 1, trainer={"padding": "x" * 30_000}, expiry_cutoffs={"1": random_log.horizon})
    random_log.compact()
    apply_retention(random_log.log.directory, 1)


def image_rows(directory: LogDirectory, number: int) -> dict[Key, Row]:
    """Return the rows that a reader finds at a version."""
    found: dict[Key, Row] = {}
    for layer in VersionImage(LogIndex(directory), number).rows():
        for i in range(len(layer)):
            found[int(layer.feature[i]), int(layer.id[i])] = float(layer.value[i, 0]), int(layer.last_seen[i])
    return found
