"""The spill in RocksDB: rows are written in the background, and read from the queue or from the databases.

RocksDB runs in another process (process_main.py), because its calls hold the interpreter's lock.
"""

# U unique keys, N rows
import importlib.util
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from springtide.embeddings.errors import SpillError
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.disk_space import MIN_PART_BYTES, folder_bytes
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW
from springtide.embeddings.tiers.rocksdb.catalog import Database, LastSeenHistogram
from springtide.embeddings.tiers.rocksdb.child_process import Channel, ProcessLostError, RequestFailedError
from springtide.embeddings.tiers.rocksdb.record_format import RecordFormat
from springtide.embeddings.tiers.rocksdb.worker import SpillWorker, with_hint
from springtide_client.rows.layers import merge_layers
from springtide_client.rows.row_block import RowBlock, key_order

QUEUE_BYTES = 64 << 20
QUEUED_KEY_BYTES = 18  # key hash, feature, id
PATIENCE_SECONDS = 30.0
RETRY_SECONDS = 0.05
TRIAL_DIM, TRIAL_ROWS = 64, 8000  # of more than MIN_PART_BYTES
FIND_COUNTS = "spill_lookups", "spill_queue_hits", "spill_filter_negatives", "spill_hits", "spill_misses"
WORKER_COUNTS = "spill_written", "spill_purged", "spill_starts", "spill_failures", "spill_unknown_formats"

T = TypeVar("T")


def has_rocksdb() -> bool:
    """Return True if rocksdb-py is installed, which has no wheels for some platforms."""
    return importlib.util.find_spec("rocksdbpy") is not None


class RocksSpill:
    """Rows and tombstones in a folder of one owner, with databases for each generation.

    `folder` must not exist yet and is deleted by `close`. If its process is killed, it is restarted and loses nothing.
    """

    keeps_rows = True
    is_exclusive = False
    host_tier = None

    def __init__(
        self,
        folder: Path,
        *,
        dim: int,
        state_width: int,
        queue_bytes: int = QUEUE_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if not has_rocksdb():
            raise SpillError(
                "the spill needs RocksDB, which this Python lacks: install rocksdb-py, or configure no spill"
            )
        self.folder, self._format = folder, RecordFormat(dim, state_width)
        self._shared_folder: Path | None = None  # with those of other tables
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise SpillError(f"cannot create the spill's folder {folder}: {with_hint(str(error.strerror))}") from None
        self._worker = SpillWorker(folder, self._format, queue_bytes=queue_bytes, patience_seconds=patience_seconds)
        self._catalog = self._worker.catalog
        self._counts = dict.fromkeys(FIND_COUNTS, 0)

    @staticmethod
    def of_epoch(
        disk_path: Path,
        epoch: int,
        *,
        dim: int,
        state_width: int,
        table: str = "",
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> "RocksSpill":
        """The spill of this epoch, `<disk_path>/<epoch>/`, or one of several there. Deletes those of older epochs."""
        for folder in disk_path.iterdir() if disk_path.is_dir() else ():
            if folder.name.isdigit() and int(folder.name) < epoch:
                shutil.rmtree(folder, ignore_errors=True)
        folder, widths = disk_path / str(epoch) / table, {"dim": dim, "state_width": state_width}
        spill = RocksSpill(folder, **widths, patience_seconds=patience_seconds)
        spill._shared_folder = spill.folder.parent if table else None
        return spill

    def write(self, rows: RowBlock, num_new: int) -> None:
        if len(rows):
            self._worker.enqueue(_batch(rows), num_new)

    def has_room(self, num_rows: int, wait_seconds: float = 0.0) -> bool:
        """Return True if the queue has room for rows in one write. Why it has none, `stall_reason` says."""
        return self._worker.has_room(num_rows * (QUEUED_KEY_BYTES + self._format.num_bytes), wait_seconds)

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            self._worker.enqueue(_batch(RowBlock.of_keys(features_N, ids_N)).deleted(), 0)

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        """Look in 1. the queue, the newest batch first, 2. the databases that may have the rest, the newest first.

        Batches are written in their order, so the queue is newer than any database.
        """
        deadline = self._worker.deadline()
        found = FoundRows.nothing(features_U, ids_U, self._format.dim, self._format.state_width)
        key_hash_U = found.rows.key_hash
        num_read = num_found = 0
        with self._worker.reading() as (batches, databases):
            missing = np.argsort(key_hash_U)
            for batch in batches:
                missing = found.put_batch(missing, batch)
            num_queued = len(ids_U) - len(missing)
            for database in databases:
                may_be_U = database.keys.contains(key_hash_U[missing])
                chosen = missing[may_be_U]
                if len(chosen):
                    with self._worker.blocking_call():
                        self._read(database, chosen, found, deadline)
                    here = found.kinds_U[chosen] != ABSENT
                    num_read, num_found = num_read + len(chosen), num_found + int(np.count_nonzero(here))
                    missing = np.concatenate([missing[~may_be_U], chosen[~here]])
                    missing = missing[np.argsort(key_hash_U[missing])]
        self._count(
            spill_lookups=len(ids_U),
            spill_queue_hits=num_queued,
            spill_hits=num_found,
            spill_misses=num_read - num_found,
            spill_filter_negatives=max(0, len(ids_U) - num_queued - num_read),
        )
        return found

    def is_empty_for(self, num_keys: int) -> bool:
        is_empty = self._worker.is_empty()
        if is_empty:
            self._count(spill_lookups=num_keys, spill_filter_negatives=num_keys)
        return is_empty

    def read_all(self) -> RowBlock:
        """Every stored row, which must all fit into memory."""
        dim, state_width = self._format.dim, self._format.state_width
        newest_first: list[RowBlock] = []
        with self._worker.reading() as (batches, databases):
            for batch in batches:
                deleted = RowBlock.of_keys(batch.feature, batch.id, dim, state_width).deleted()
                newest_first.append(batch if batch.tombstone is None else deleted)
            for database in databases:
                newest_first += self._scan(database)
        rows = merge_layers(RowBlock.zeros(0, dim, state_width), *reversed(newest_first))
        return rows.where(~rows.tombstones()).without_tombstones()

    def open_generation(self) -> int:
        return self._catalog.open_generation()

    def destroy_generations(self, upto: int) -> None:
        self._catalog.destroy_generations(upto)

    def purge(self, cutoffs: dict[int, int]) -> None:
        self._worker.purge.raise_cutoffs(cutoffs)

    def set_limit(self, num_bytes: int) -> None:
        self._worker.set_limit(num_bytes)

    def fraction_to_forget(self) -> float:
        worker = self._worker
        return worker.space.fraction_to_free(self._catalog.queued_bytes) if worker.purge.must_forget() else 0.0

    def stall_reason(self) -> str:
        return self._worker.stall_reason()

    def report_purged(self, reports: bool) -> None:
        self._worker.purge.report(reports)

    def take_purged(self) -> tuple[UInt16Array, Int64Array]:
        parts = [(np.empty(0, np.uint16), np.empty(0, np.int64)), *self._worker.purge.take_purged()]
        features, ids = zip(*parts, strict=True)
        return np.concatenate(features), np.concatenate(ids)

    def last_seen_quantile(self, fraction: float) -> int | None:
        return LastSeenHistogram.merged(database.last_seen for database in self._catalog.databases()).quantile(fraction)

    def drain(self) -> None:
        """Wait until the queue is written and expired rows are purged."""
        self._worker.drain()

    def num_rows(self) -> int:
        with self._catalog.changed:
            return sum(generation.num_rows for generation in self._catalog.generations)

    def num_bytes(self) -> int:
        return folder_bytes(self.folder) + self._catalog.queued_bytes

    def memory_bytes(self) -> int:
        """Bytes of the filters and of the memory shared with the process, without the process's own caches."""
        return self._worker.memory_bytes()

    def counters(self) -> dict[str, int]:
        with self._catalog.changed:
            return self._counts | dict.fromkeys(WORKER_COUNTS, 0) | dict(self._worker.counts)

    def close(self) -> None:
        """Discard the queue and delete the folder; that of the epoch too with its last spill."""
        self._worker.close()
        if self._shared_folder is not None:
            with suppress(OSError):
                self._shared_folder.rmdir()

    def _count(self, **more: int) -> None:
        with self._catalog.changed:
            for name, num in more.items():
                self._counts[name] += num

    def _read(self, database: Database, chosen: Int64Array, found: FoundRows, deadline: float) -> None:
        """Read the keys at these positions: from mapped tables, and meanwhile through RocksDB what they may lack."""
        tables = database.tables
        view, here, elsewhere = tables.split(found.rows.key_hash, chosen)
        unsure = [here]

        def read_here() -> None:
            unsure[0] = tables.read(view, unsure[0], found)

        self._read_stored(database, elsewhere, found, deadline, read_here)
        if not len(elsewhere):
            read_here()
        self._read_stored(database, unsure[0], found, deadline)

    def _read_stored(
        self,
        database: Database,
        chosen: Int64Array,
        found: FoundRows,
        deadline: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Read the keys at these positions from RocksDB. `meanwhile` is called while it reads."""
        start, rows = 0, found.rows

        def read_part(channel: Channel) -> int:
            nonlocal meanwhile
            part = chosen[start : start + channel.process.num_keys]
            self._format.pack_keys(rows.key_hash[part], rows.feature[part], channel.keys(len(part)))
            channel.send("find", database.number, len(part))
            if meanwhile is not None:
                now, meanwhile = meanwhile, None
                self._run_beside(channel, now)
            (num_rows,) = channel.call(deadline=deadline)
            kinds = found.kinds_U[part] = channel.kinds(len(part))
            self._format.unpack(channel.records(num_rows), found, part[kinds == ROW])
            return len(part)

        while start < len(chosen):
            start += self._request(read_part, deadline)

    @staticmethod
    def _run_beside(channel: Channel, work: Callable[[], None]) -> None:
        """Work while a response is due. Where that fails the process is killed, so that nobody reads the response."""
        try:
            work()
        except BaseException:
            channel.process.kill()
            raise

    def _request(self, request: Callable[[Channel], T], deadline: float) -> T:
        """Make a request of the process, again where it fails or the process dies.

        SpillError at the deadline, or if a retry would not help; it says why the request failed last.
        """
        failed: RequestFailedError | None = None
        while True:
            try:
                process = self._worker.process(deadline)
            except SpillError:
                if failed is None:
                    raise
                raise self._unreadable(failed) from failed
            try:
                with process.find_channel(deadline) as channel:
                    return request(channel)
            except ProcessLostError:
                continue  # with the next process
            except RequestFailedError as error:
                if error.final or time.monotonic() + RETRY_SECONDS > deadline:
                    raise self._unreadable(error) from error
                failed = error
            self._worker.pause(RETRY_SECONDS)

    def _unreadable(self, error: RequestFailedError) -> SpillError:
        return SpillError(f"the spill in {self.folder} cannot be read: {with_hint(str(error))}")

    def _scan(self, database: Database) -> list[RowBlock]:
        parts: list[RowBlock] = []
        after: str | None = ""

        def scan_part(channel: Channel) -> str | None:
            num, last = channel.call("scan", database.number, after, channel.process.num_keys, deadline=deadline)
            found = self._format.unpack_scan(channel, num)
            parts.append(replace(found.rows, tombstone=found.forgotten_U))
            next_after: str | None = last
            return next_after

        while after is not None:
            deadline = self._worker.deadline()
            after = self._request(scan_part, deadline)
        return parts


def _batch(rows: RowBlock) -> RowBlock:
    """Copies of rows, in key order."""
    return rows.take(key_order(rows.key_hash, rows.feature))


def unknown_format(folder: Path) -> str:
    """Write a table file in this folder, which must not exist and is deleted; return what of it only RocksDB can read,
    "" for nothing. SpillError.
    """
    spill = RocksSpill(folder, dim=TRIAL_DIM, state_width=0)
    try:
        # the second write goes to another database, and what the first one wrote to a table file
        spill.set_limit(16 * MIN_PART_BYTES)
        for ids in (np.arange(TRIAL_ROWS), np.arange(1)):
            rows = RowBlock.of_keys(np.zeros(len(ids), np.uint16), ids, TRIAL_DIM, 0)
            spill.write(rows, len(ids))
            spill.drain()
        spill.find(np.zeros(TRIAL_ROWS, np.uint16), np.arange(TRIAL_ROWS))
        return spill._worker.unknown_format
    finally:
        spill.close()
