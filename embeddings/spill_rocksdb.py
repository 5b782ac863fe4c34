"""The spill in RocksDB: a folder of its own for one epoch of one owner, a database for each generation in it.

The only door to rocksdbpy. Its calls hold the GIL, so they are kept short; its panics are BaseExceptions; it is never
iterated, and never called after close.
"""

# U unique keys, N rows
import shutil
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from springtide_client.keys import mix_keys

from embeddings.errors import SpillError
from embeddings.rows import Int64Array, Rows, UInt16Array
from embeddings.spill import MARK, ROW, SpilledRows
from embeddings.spill_block import Block, RecordFormat

CALL_KEYS = 1000  # keys of one call: the GIL is held for 1 to 2 ms
WRITE_BUFFER_BYTES = 64 << 20
CACHE_MB = 64


@dataclass
class Generation:
    """A database that opens with its first write; only the writer's thread opens, writes and destroys it."""

    number: int
    path: Path
    database: Any = None
    num_rows: int = 0


class RocksSpill:
    """Rows and marks written by a thread of its own; a find sees what still waits for it.

    `folder` must not exist yet and is removed by `close`. A failure of the disk shows as SpillError at the next call.
    """

    keeps_rows = True

    def __init__(self, folder: Path, *, dim: int, state_width: int, queue_bytes: int = 64 << 20) -> None:
        self._rocksdb = _rocksdb()
        self.folder, self.queue_bytes = folder, queue_bytes
        self._format = RecordFormat(dim, state_width)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise SpillError(f"the spill's folder {folder} cannot be made: {error.strerror}") from None
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Generation, Block]] = deque()  # oldest first; the writer removes what it has written
        self._doomed: list[Generation] = []
        self._waiting_bytes = 0
        self._generations = [self._new_generation(0)]
        self._error: BaseException | None = None
        self._closing = False
        self._reading = False  # a find waits for no more than one call of the writer's
        self._writer = threading.Thread(target=self._write_all, name="spill-writer", daemon=True)
        self._writer.start()

    @staticmethod
    def of_epoch(disk_path: Path, epoch: int, *, dim: int, state_width: int) -> "RocksSpill":
        """The spill of this epoch, `<disk_path>/<epoch>/`; those of older epochs are removed."""
        for folder in disk_path.iterdir() if disk_path.is_dir() else ():
            if folder.name.isdigit() and int(folder.name) < epoch:
                shutil.rmtree(folder, ignore_errors=True)
        return RocksSpill(disk_path / str(epoch), dim=dim, state_width=state_width)

    def write(self, rows: Rows, num_new: int) -> None:
        self._enqueue(self._format.block(rows.features, rows.ids, ROW, rows), num_new)

    def mark(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        self._enqueue(self._format.block(features_N, ids_N, MARK, None), 0)

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> SpilledRows:
        """1. What waits, the newest first. 2. The generations, the newest first.

        Writes are made in their order, so what waits is newer than what any generation holds.
        """
        with self._changed:
            self._raise_error()
            waiting = [block for _, block in reversed(self._waiting)]
            generations = [generation for generation in reversed(self._generations) if generation.database is not None]
        records_U = self._format.records(len(ids_U))
        mixed_U = mix_keys(features_U, ids_U)
        missing = np.argsort(mixed_U) if waiting else np.arange(len(ids_U))
        for block in waiting:
            at, here = block.find(mixed_U[missing], features_U[missing])
            records_U[missing[here]] = block.records[at[here]]
            missing = missing[~here]
        order = np.lexsort((ids_U[missing].view(np.uint64), features_U[missing]))
        missing = missing[order]
        self._reading = True
        try:
            for generation in generations:
                found = [
                    self._get(generation, features_U, ids_U, missing[start : start + CALL_KEYS], records_U)
                    for start in range(0, len(missing), CALL_KEYS)
                ]
                missing = missing[~np.concatenate(found)] if found else missing
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()
        return SpilledRows(records_U["kind"].copy(), self._format.rows(features_U, ids_U, records_U))

    def read_all(self) -> Rows:
        """Waits until all is written; holds every row in memory."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._error is not None or self._closing)
            self._raise_error()
        records: dict[bytes, bytes] = {}
        for generation in self._generations:
            if generation.database is not None:
                # read to its end at once: an iterator that outlives its database aborts the process
                records.update(dict(pair for pair in generation.database.iterator("start", b"", 1)))
        return self._format.live_rows(b"".join(records), b"".join(records.values()))

    def open_generation(self) -> int:
        with self._changed:
            closed = self._generations[-1].number
            self._generations.append(self._new_generation(closed + 1))
            return closed

    def destroy_generations(self, upto: int) -> None:
        with self._changed:
            self._doomed += [generation for generation in self._generations if generation.number <= upto]
            self._generations = [generation for generation in self._generations if generation.number > upto]
            self._changed.notify_all()

    def num_rows(self) -> int:
        with self._changed:
            return sum(generation.num_rows for generation in self._generations)

    def num_bytes(self) -> int:
        on_disk = 0
        for file in self.folder.rglob("*"):
            try:
                on_disk += file.stat().st_size if file.is_file() else 0
            except FileNotFoundError:  # RocksDB removes files as it merges them
                continue
        return on_disk + self._waiting_bytes

    def close(self) -> None:
        """Ends the writer without writing what waits, and removes the folder: nothing in it outlives its owner."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._writer.join()
        for generation in [*self._generations, *self._doomed]:
            self._destroy(generation)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _new_generation(self, number: int) -> Generation:
        return Generation(number, self.folder / f"{number:06d}")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise SpillError(f"the spill in {self.folder} has failed: {self._error}") from self._error
        if self._closing:
            raise SpillError(f"the spill in {self.folder} is closed")

    def _enqueue(self, block: Block, num_new: int) -> None:
        with self._changed:
            # back-pressure: one block may always wait, however large it is
            self._changed.wait_for(
                lambda: (
                    not self._waiting
                    or self._waiting_bytes + block.num_bytes <= self.queue_bytes
                    or self._error is not None
                    or self._closing
                )
            )
            self._raise_error()
            self._waiting.append((self._generations[-1], block))
            self._generations[-1].num_rows += num_new
            self._waiting_bytes += block.num_bytes
            self._changed.notify_all()

    def _get(
        self, generation: Generation, features_U: UInt16Array, ids_U: Int64Array, at_N: Int64Array, records_U: Any
    ) -> Any:
        try:
            answers = generation.database.multi_get(self._format.keys(features_U[at_N], ids_U[at_N]), False)
        except BaseException as error:  # a panic in Rust is no Exception
            _raise_interrupt(error)
            raise SpillError(f"the spill in {generation.path} cannot be read: {error}") from error
        found_N = np.fromiter(map(bool, answers), np.bool_, len(at_N))
        records_U[at_N[found_N]] = self._format.parse(b"".join(filter(None, answers)))
        return found_N

    # the writer's thread

    def _write_all(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._doomed or self._closing)
                    if self._closing:
                        return
                    doomed, self._doomed = self._doomed, []
                    generation, block = self._waiting[0] if self._waiting else (None, None)
                if generation is not None and block is not None:
                    self._write(generation, block)
                    with self._changed:
                        self._waiting.popleft()
                        self._waiting_bytes -= block.num_bytes
                        self._changed.notify_all()
                for old in doomed:
                    self._destroy(old)
        except BaseException as error:  # told to the next caller; a panic in Rust is no Exception
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _write(self, generation: Generation, block: Block) -> None:
        if generation.database is None:
            generation.database = self._rocksdb.open(str(generation.path), self._options())
        keys = self._format.keys(block.features, block.ids)
        values = self._format.values(block.records)
        for start in range(0, len(keys), CALL_KEYS):
            with self._changed:
                self._changed.wait_for(lambda: not self._reading or self._closing)
            if self._closing:
                return
            batch = self._rocksdb.WriteBatch()  # a batch written is spent
            part = slice(start, start + CALL_KEYS)
            deque(map(batch.add, keys[part], values[part]), maxlen=0)
            generation.database.write(batch)

    def _options(self) -> Any:
        options = self._rocksdb.Option()
        options.create_if_missing(True)
        options.optimize_for_point_lookup(CACHE_MB)
        options.set_allow_mmap_reads(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_background_jobs(2)
        return options

    def _destroy(self, generation: Generation) -> None:
        if generation.database is not None:
            generation.database.close()
            generation.database = None
        shutil.rmtree(generation.path, ignore_errors=True)


def _rocksdb() -> Any:
    try:
        import rocksdbpy
    except ImportError as error:
        raise SpillError(
            f"the spill needs RocksDB, and this Python has none ({error}): install rocksdb-py or do without a spill"
        ) from None
    return rocksdbpy


def _raise_interrupt(error: BaseException) -> None:
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
