"""A log written by several ranks, whose writers are all in this process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.keys import mix_keys
from torch.distributed import HashStore

from app.version_log.write.ranks import LogRanks, RankStore
from app.version_log.write.shard_writer import open_log
from app.version_log.write.writer import LogWriter
from embeddings.sharding.key_ranges import owners_of
from tests.support.writer_log import SCHEMA, Key, Row, WriterLog, config, first_base, row_tensors


class Team:
    """The writers of one epoch, by rank."""

    def __init__(self, writers: list[LogWriter]) -> None:
        self.writers = writers

    @property
    def lead(self) -> LogWriter:
        return self.writers[0]

    def put(self, rows: dict[Key, Row], forgotten: list[Key] = [], **meta: object) -> int:  # noqa: B006
        """Cut a version: every rank appends the rows of its keys. Returns its number."""
        size = len(self.writers)
        numbers = set()
        meta = {"fingerprint": SCHEMA.fingerprint(), **meta}
        for rank in reversed(range(size)):
            own = {key: row for key, row in rows.items() if owner(key, size) == rank}
            gone = [key for key in forgotten if owner(key, size) == rank]
            numbers.add(self.writers[rank].append_owned(VersionMeta(**meta), row_tensors(own, gone)))
        (number,) = numbers
        return number

    def sync(self) -> None:
        """Make everything durable; all ranks at once, as they do."""
        with ThreadPoolExecutor(len(self.writers)) as threads:
            for done in [threads.submit(writer.sync) for writer in self.writers]:
                done.result()

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.writers)) as threads:
            list(threads.map(LogWriter.close, self.writers))


class TeamLog(WriterLog):
    """Opens one team after another over one log."""

    def start(
        self,
        num_ranks: int,
        *,
        store: RankStore | None = None,
        timeout_seconds: float = 60.0,
        take_over: bool = False,
        **changes: object,
    ) -> Team:
        """Open the writers of a team; a new log gets its first base."""
        shared = store or HashStore()
        writers = [
            open_log(
                config(self.path, **changes),
                schema=SCHEMA,
                take_over=take_over,
                wait_seconds=0.2,
                ranks=LogRanks(shared, rank, num_ranks, timeout_seconds),
            )
            for rank in range(num_ranks)
        ]
        if writers[0].start_tip is None:
            first_base(self.path, writers[0].first_base_tip, tables=self.tables)
            for writer in writers:
                writer.start_after(writer.first_base_tip)
        return Team(writers)

    @contextmanager
    def team(self, num_ranks: int, **changes: object) -> Iterator[Team]:
        team = self.start(num_ranks, **changes)
        try:
            yield team
        finally:
            team.close()

    def kill_team(self, team: Team) -> None:
        """End all writers of a team as SIGKILL would."""
        for writer in team.writers:
            self.kill(writer)

    def read(self) -> tuple[Tip, dict[Key, Row]]:
        """Return where a reader that starts now ends, and the rows it has."""
        base = self.directory.open_base()
        assert base is not None
        rows, tip = self.rows_in(base), base.tip
        for record in self.directory.records(base.tip):
            apply(rows, record.tensors())
            tip = record.tip
        return tip, rows


def apply(rows: dict[Key, Row], tensors: dict[str, np.ndarray]) -> None:
    """Apply a record to a dictionary."""
    for feature, row_id in zip(tensors["forgotten.feature"].tolist(), tensors["forgotten.id"].tolist(), strict=True):
        rows.pop((feature, row_id), None)
    names = [f"rows.{name}" for name in ("feature", "id", "value", "last_seen")]
    for feature, row_id, value, seen in zip(*(tensors[name].tolist() for name in names), strict=True):
        rows[feature, row_id] = (value[0], seen)


def owner(key: Key, num_ranks: int) -> int:
    """Return the rank that a key belongs to."""
    mixed = mix_keys(np.array([key[0]], np.uint16), np.array([key[1]], np.int64))
    return int(owners_of(np, mixed, num_ranks)[0])
