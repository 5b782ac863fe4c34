"""A log of random versions, and for each the rows that it must hold."""

import random

from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import CommandEntry, NamedKey, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from tests.support.writer_log import SCHEMA, Key, Row, WriterLog, row_tensors

World = dict[Key, Row]


class RandomVersions:
    """Writes versions with rows, forgotten keys and a rising expiry cutoff of feature 1.

    `features`: the numbers of those whose rows it writes.
    """

    def __init__(self, log: WriterLog, writer: LogWriter, seed: int = 3, features: tuple[int, ...] = (0, 1)) -> None:
        self.features = features
        self.log, self.writer, self.rng = log, writer, random.Random(seed)
        self.horizon = 0
        assert writer.start_tip is not None
        self.worlds: dict[int, World] = {writer.start_tip.number: {}}
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
