"""A log of random versions, and for each of them a dictionary of the rows that it must hold."""

import random

from small_log import SCHEMA, Key, Row, SmallLog, row_tensors
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base

from app.version_log.compact.merge import compact_log
from app.version_log.write.writer import LogWriter

World = dict[Key, Row]


class RandomLog:
    """Writes versions with rows, forgotten keys and a horizon of feature 1 that rises."""

    def __init__(self, log: SmallLog, writer: LogWriter, seed: int = 3) -> None:
        self.log, self.writer, self.rng = log, writer, random.Random(seed)
        self.horizon = 0
        assert writer.start_tip is not None
        self.worlds: dict[int, World] = {writer.start_tip.number: {}}
        self.forgotten: dict[int, set[Key]] = {}
        self.ordered: dict[int, set[Key]] = {}  # those of them that an order has forgotten
        self.now: World = {}

    def write(self, num_versions: int) -> None:
        rng = self.rng
        for _ in range(num_versions):
            rows = {
                (rng.randrange(2), rng.randrange(60)): (float(rng.randrange(1, 99)), self.horizon + rng.randrange(500))
                for _ in range(rng.randrange(12))
            }
            forgotten = {(rng.randrange(2), rng.randrange(60)) for _ in range(rng.randrange(3))}
            self.horizon += rng.choice([0, 0, 0, 60])
            self.now = {key: row for key, row in self.now.items() if key not in forgotten} | rows
            self.now = {key: row for key, row in self.now.items() if key[0] != 1 or row[1] >= self.horizon}
            self.append(rows, sorted(forgotten))

    def append(self, rows: World, forgotten: list[Key], more: Arrays | None = None) -> None:
        """A version; `now` must already say what it makes of the world."""
        horizons = {"1": self.horizon} if self.horizon else {}
        ordered = {key for key in forgotten if self.rng.random() < 0.5}
        keys = [{"feature": ("user_id", "item_id")[feature], "id": str(row_id)} for feature, row_id in ordered]
        orders = [{"id": f"o{len(self.worlds)}", "kind": "forget", "keys": keys}] if keys else []
        fingerprint = SCHEMA.fingerprint()
        meta = VersionMeta(
            expiry_cutoffs=horizons, samples_trained=len(self.worlds), fingerprint=fingerprint, executed_commands=orders
        )
        version = self.writer.append(meta, row_tensors(rows, forgotten) | (more or {}))
        self.worlds[version.number] = dict(self.now)
        self.forgotten[version.number], self.ordered[version.number] = set(forgotten), ordered

    def merge(self) -> Base:
        """A base of everything so far, and a version that says so."""
        self.writer.sync()
        self.append({}, [])
        self.writer.sync()
        path = compact_log(self.log.directory, window_samples=100)
        assert path is not None
        return Base.open(path)
