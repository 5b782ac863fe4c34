"""The spill in RocksDB: a folder of its own for one epoch of one owner, databases for each generation in it.

RocksDB itself lives in another process (process.py), for its calls hold the interpreter's lock.
"""

# U unique keys, N rows
import importlib.util
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from springtide_client.keys import mix_keys

from embeddings.errors import SpillError
from embeddings.rows import Int64Array, Rows, UInt16Array
from embeddings.tiers.interface import ABSENT, ROW, TOMBSTONE, SpilledRows
from embeddings.tiers.rocksdb.catalog import Database
from embeddings.tiers.rocksdb.child_process import ProcessLostError, RequestFailedError
from embeddings.tiers.rocksdb.error_hints import with_hint
from embeddings.tiers.rocksdb.last_seen_histogram import LastSeenHistogram
from embeddings.tiers.rocksdb.worker import SpillWorker
from embeddings.tiers.write_batch import RecordFormat, UInt64Array, WriteBatch, unmix_keys

QUEUE_BYTES = 64 << 20
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.05
FIND_COUNTS = "spill_asked", "spill_waiting", "spill_absent", "spill_found", "spill_in_vain"
WORKER_COUNTS = "spill_written", "spill_purged", "spill_starts", "spill_failures"


class RocksSpill:
    """Rows and marks, written in the background; a find sees what waits, and asks the disk for what may be there.

    `folder` must not exist yet and is removed by `close`. A killed process is started again and loses nothing.
    """

    keeps_rows = True

    def __init__(
        self,
        folder: Path,
        *,
        dim: int,
        state_width: int,
        queue_bytes: int = QUEUE_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if importlib.util.find_spec("rocksdbpy") is None:
            raise SpillError("the spill needs RocksDB, and this Python has none: install rocksdb-py or do without one")
        self.folder, self._format = folder, RecordFormat(dim, state_width)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise SpillError(f"the spill's folder {folder} cannot be made: {with_hint(str(error.strerror))}") from None
        self._worker = SpillWorker(folder, self._format, queue_bytes=queue_bytes, patience_seconds=patience_seconds)
        self._catalog = self._worker.catalog
        self._counts = dict.fromkeys(FIND_COUNTS, 0)

    @staticmethod
    def of_epoch(disk_path: Path, epoch: int, *, dim: int, state_width: int) -> "RocksSpill":
        """The spill of this epoch, `<disk_path>/<epoch>/`; those of older epochs are removed."""
        for folder in disk_path.iterdir() if disk_path.is_dir() else ():
            if folder.name.isdigit() and int(folder.name) < epoch:
                shutil.rmtree(folder, ignore_errors=True)
        return RocksSpill(disk_path / str(epoch), dim=dim, state_width=state_width)

    def write(self, rows: Rows, num_new: int) -> None:
        if len(rows):
            self._worker.enqueue(WriteBatch.of(rows.features, rows.ids, rows), num_new)

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            self._worker.enqueue(WriteBatch.of(features_N, ids_N, None), 0)

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> SpilledRows:
        """1. What waits, the newest first. 2. The databases that may hold the rest, the newest first.

        Writes are made in their order, so what waits is newer than what any database holds.
        """
        deadline = self._worker.deadline()
        kinds_U = np.full(len(ids_U), ABSENT, np.uint8)
        rows = Rows.empty(len(ids_U), self._format.dim, self._format.state_width)
        rows.features[:], rows.ids[:] = features_U, ids_U
        mixed_U = mix_keys(features_U, ids_U)
        num_asked = num_found = 0
        with self._worker.reading() as (blocks, databases):
            missing = np.argsort(mixed_U)
            for block in blocks:
                missing = block.fill_found(mixed_U, missing, kinds_U, rows)
            num_waiting = len(ids_U) - len(missing)
            for database in databases:
                may_be_U = database.keys.contains(mixed_U[missing])
                asked = missing[may_be_U]
                if len(asked):
                    with self._worker.blocking_call():
                        self._read_stored(database, mixed_U, asked, kinds_U, rows, deadline)
                    found = kinds_U[asked] != ABSENT
                    num_asked, num_found = num_asked + len(asked), num_found + int(np.count_nonzero(found))
                    missing = np.concatenate([missing[~may_be_U], asked[~found]])
                    missing = missing[np.argsort(mixed_U[missing])]
        self._count(
            spill_asked=len(ids_U),
            spill_waiting=num_waiting,
            spill_found=num_found,
            spill_in_vain=num_asked - num_found,
            spill_absent=max(0, len(ids_U) - num_waiting - num_asked),
        )
        return SpilledRows(kinds_U, rows)

    def read_all(self) -> Rows:
        """Holds every row in memory."""
        deadline = self._worker.deadline()
        parts: list[tuple[UInt64Array, npt.NDArray[np.uint8], Rows]] = []  # the newest first
        with self._worker.reading() as (blocks, databases):
            for block in blocks:
                kind = TOMBSTONE if block.rows is None else ROW
                nothing = Rows.empty(len(block), self._format.dim, self._format.state_width)
                rows = block.rows or Rows(block.features, block.ids, *nothing.columns()[2:])  # type: ignore[arg-type]
                parts.append((block.mixed, np.full(len(block), kind, np.uint8), rows))
            for database in databases:
                parts += self._scan(database, deadline)
        if not parts:
            return Rows.empty(0, self._format.dim, self._format.state_width)
        mixed_N = np.concatenate([mixed for mixed, _, _ in parts])
        kinds_N = np.concatenate([kinds for _, kinds, _ in parts])
        rows = Rows.concatenate([rows for _, _, rows in parts])
        # the first of each key is its newest
        order = np.lexsort((np.arange(len(mixed_N)), rows.features, mixed_N))
        same = (mixed_N[order][1:] == mixed_N[order][:-1]) & (rows.features[order][1:] == rows.features[order][:-1])
        newest = order[np.concatenate([[True], ~same])]
        return rows.take(newest[kinds_N[newest] == ROW])

    def open_generation(self) -> int:
        return self._catalog.open_generation()

    def destroy_generations(self, upto: int) -> None:
        self._catalog.destroy_generations(upto)

    def purge(self, horizons: dict[int, int]) -> None:
        self._worker.purge.raise_cutoffs(horizons)

    def stall_reason(self) -> str:
        return self._worker.stall_reason()

    def is_purging(self) -> bool:
        return self._worker.purge.active()

    def last_seen_quantile(self, fraction: float) -> int | None:
        return LastSeenHistogram.merged(database.last_seen for database in self._catalog.databases()).quantile(fraction)

    def drain(self) -> None:
        """Waits until all is written and purged."""
        self._worker.drain()

    def num_rows(self) -> int:
        with self._catalog.changed:
            return sum(generation.num_rows for generation in self._catalog.generations)

    def num_bytes(self) -> int:
        on_disk = 0
        for folder, _, names in os.walk(self.folder):  # passes over folders that are destroyed meanwhile
            for name in names:
                with suppress(FileNotFoundError):  # RocksDB removes files as it merges them
                    on_disk += os.stat(os.path.join(folder, name)).st_size
        return on_disk + self._catalog.waiting_bytes

    def memory_bytes(self) -> int:
        """Filters, and the memory shared with the process; its own caches are not in it."""
        return self._worker.memory_bytes()

    def counters(self) -> dict[str, int]:
        with self._catalog.changed:
            return self._counts | dict.fromkeys(WORKER_COUNTS, 0) | dict(self._worker.counts)

    def close(self) -> None:
        """Nothing that waits is written: what is in the folder does not outlive its owner."""
        self._worker.close()

    def _count(self, **more: int) -> None:
        with self._catalog.changed:
            for name, num in more.items():
                self._counts[name] += num

    def _read_stored(
        self,
        database: Database,
        mixed_U: UInt64Array,
        asked: Int64Array,
        kinds_U: npt.NDArray[np.uint8],
        rows: Rows,
        deadline: float,
    ) -> None:
        """What a database holds of the keys at these positions, into kinds and rows."""
        start = 0
        while start < len(asked):
            part = asked[start:]
            child = self._worker.process(deadline)
            try:
                with child.find_channel(deadline) as lane:
                    part = part[: child.num_keys]
                    self._format.pack_keys(mixed_U[part], rows.features[part], lane.keys(len(part)))
                    (num_rows,) = lane.call("find", database.number, len(part), deadline=deadline)
                    kinds = kinds_U[part] = lane.kinds(len(part))
                    found = part[kinds == ROW]
                    self._format.unpack(lane.records(num_rows), mixed_U[found], rows, found)
                start += len(part)
            except ProcessLostError:
                pass  # another one is asked
            except RequestFailedError as error:
                self._pause_or_raise(error, deadline)

    def _pause_or_raise(self, error: RequestFailedError, deadline: float) -> None:
        """A pause, where there is time for one."""
        if error.final or time.monotonic() + PAUSE_SECONDS > deadline:
            raise SpillError(f"the spill in {self.folder} cannot be read: {with_hint(str(error))}") from error
        self._worker.wait_a_little(PAUSE_SECONDS)

    def _scan(self, database: Database, deadline: float) -> list[tuple[UInt64Array, npt.NDArray[np.uint8], Rows]]:
        parts = []
        after: str | None = ""
        while after is not None:
            child = self._worker.process(deadline)
            try:
                with child.find_channel(deadline) as lane:
                    num, after = lane.call("scan", database.number, after, child.num_keys, deadline=deadline)
                    mixed_N, features_N = self._format.unpack_keys(lane.keys(num))
                    kinds_N = lane.kinds(num).copy()
                    rows = Rows.empty(num, self._format.dim, self._format.state_width)
                    rows.features[:], rows.ids[:] = features_N, unmix_keys(mixed_N, features_N)
                    at_N = np.flatnonzero(kinds_N == ROW)
                    self._format.unpack(lane.records(len(at_N)), mixed_N[at_N], rows, at_N)
                parts.append((mixed_N, kinds_N, rows))
                deadline = self._worker.deadline()
            except ProcessLostError:
                continue
            except RequestFailedError as error:
                self._pause_or_raise(error, deadline)
        return parts
