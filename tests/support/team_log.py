"""A log written by several ranks, whose writers are all in this process."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np

from springtide.app.version_log.write.ranks import LogRanks, RankStore
from springtide.app.version_log.write.writer import LogWriter, open_log
from springtide.embeddings.sharding.route import owners_of
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.keys import mix_keys
from tests.support.writer_log import SCHEMA, Key, Row, WriterLog, config, first_base, row_tensors


class MemoryStore:
    """A store within one process, for processes that have no use for torch."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("timed out")

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None


class Team:
    """The writers of one epoch, by rank."""

    def __init__(self, writers: list[LogWriter]) -> None:
        self.writers = writers

    @property
    def lead(self) -> LogWriter:
        return self.writers[0]

    def put(self, rows: dict[Key, Row], forgotten: list[Key] = [], **meta: object) -> int:  # noqa: B006
        """Write a version: every rank appends the rows of its keys. Returns its number."""
        size = len(self.writers)
        numbers = set()
        meta = {"fingerprint": SCHEMA.fingerprint(), **meta}
        for rank in reversed(range(size)):
            numbers.add(self.writers[rank].append_owned(VersionMeta(**meta), self.share(rank, rows, forgotten)))
        (number,) = numbers
        return number

    def share(self, rank: int, rows: dict[Key, Row], forgotten: list[Key]) -> Arrays:
        """Return what one rank writes of a version."""
        size = len(self.writers)
        own = {key: row for key, row in rows.items() if owner(key, size) == rank}
        return row_tensors(own, [key for key in forgotten if owner(key, size) == rank])

    def append(self, meta: VersionMeta, tensors: Arrays) -> int:
        """Append a version whose tensors are rank 0's."""
        for writer in self.writers[1:]:
            writer.append_owned(meta, {})
        return self.lead.append_owned(meta, tensors)

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

    def __init__(self, path: Path, new_store: Callable[[], RankStore] = MemoryStore) -> None:
        super().__init__(path)
        self._new_store = new_store

    def start(
        self,
        num_ranks: int,
        *,
        timeout_seconds: float = 60.0,
        take_over: bool = False,
        **changes: object,
    ) -> Team:
        """Open the writers of a team; a new log gets its first base."""
        shared = self._new_store()
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


def apply(rows: dict[Key, Row], tensors: Arrays) -> None:
    """Apply a record to a dictionary."""
    for feature, row_id in zip(tensors["forgotten.feature"].tolist(), tensors["forgotten.id"].tolist(), strict=True):
        rows.pop((feature, row_id), None)
    names = [f"rows.{name}" for name in ("feature", "id", "value", "last_seen")]
    for feature, row_id, value, seen in zip(*(tensors[name].tolist() for name in names), strict=True):
        rows[feature, row_id] = (value[0], seen)


def owner(key: Key, num_ranks: int) -> int:
    """Return the rank that a key belongs to."""
    mixed = mix_keys(np.array([key[0]], np.uint16), np.array([key[1]], np.int64))
    return int(owners_of(mixed, num_ranks)[0])
