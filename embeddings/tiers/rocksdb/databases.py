"""RocksDB databases by number: the only module that uses rocksdbpy, and only within the spill's own process.

A key has 10 bytes, of which the first eight are the mixed key. A value has one size, or it is empty: a tombstone.
"""

import os
import shutil
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from springtide.embeddings.tiers.rocksdb.channel import KEY_BYTES, CorruptSpillBlockError

Pairs = list[tuple[bytes, bytes]]

# small buffers stay in the CPU's cache while they are sorted; four are flushed as one file, so compaction costs no more
WRITE_BUFFER_BYTES, MAX_WRITE_BUFFERS, MERGED_WRITE_BUFFERS = 8 << 20, 8, 4
MIN_WRITE_BUFFER_BYTES = 128 << 10
CACHE_MB = 64
PROBE_BYTES = 4 << 20


class Databases:
    """The databases `<folder>/<number>`, each opened when it is first used."""

    def __init__(self, folder: Path, record_bytes: int, rocksdb: Any) -> None:
        self.folder, self.record_bytes, self._rocksdb = folder, record_bytes, rocksdb
        self._open: dict[int, Any] = {}
        self._failed: set[int] = set()  # those in which a write failed since they were opened
        self._sequences: dict[int, int] = {}  # how many entries were written, of those that were created here
        self.set_database_bytes(0)

    def get(self, number: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys in their order, None for absent keys."""
        values: list[bytes | None] = self._database(number, False).multi_get(keys, False)
        if len(values) != len(keys):
            raise CorruptSpillBlockError(f"{len(values)} values for {len(keys)} keys")
        return values

    def write(self, number: int, keys: Sequence[bytes], values: Sequence[bytes], *, may_create: bool) -> None:
        """Write one batch. A database that refuses writes after a failure is reopened once the disk has room."""
        try:
            self._write(number, keys, values, may_create)
        except Exception:
            if number not in self._open or number not in self._failed:
                self._failed.add(number)
                raise
            self._probe(number)  # raises while there is no room; meanwhile the old handle still reads
            self.close(number)
            self._write(number, keys, values, may_create)
        self._failed.discard(number)

    def sequence(self, number: int) -> int | None:
        """The sequence number of the last write; None if it is unknown."""
        return self._sequences.get(number)

    def scan(self, number: int, after: bytes, num: int) -> Pairs:
        """Up to `num` entries after a key."""
        # the iterator is deleted at once: if it outlived its database, the process would abort
        iterator = self._database(number, False).iterator("from", after + b"\0", 1)
        pairs = [(bytes(key), bytes(value)) for key, value in islice(iterator, num)]
        del iterator
        for key, value in pairs:
            if len(key) != KEY_BYTES or len(value) not in (0, self.record_bytes):
                raise CorruptSpillBlockError(f"a record of {len(value)} bytes instead of {self.record_bytes}")
        return pairs

    def flush(self, number: int) -> None:
        """Write the rows in memory to tables, and delete the log of writes that kept them safe."""
        self._database(number, False).flush()

    def set_database_bytes(self, num_bytes: int) -> None:
        """Size the buffers of databases that are opened from now on for this many bytes of rows; 0: for any number."""
        self._database_bytes = num_bytes or MAX_WRITE_BUFFERS * WRITE_BUFFER_BYTES

    def destroy(self, number: int) -> None:
        self.close(number)
        shutil.rmtree(self.path(number), ignore_errors=True)

    def close(self, number: int) -> None:
        database = self._open.pop(number, None)
        self._sequences.pop(number, None)
        self._failed.discard(number)
        if database is not None:
            database.close()

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _database(self, number: int, may_create: bool) -> Any:
        """The open database. OSError if it has vanished: an empty one must not take its place."""
        if number not in self._open:
            path = self.path(number)
            exists = (path / "CURRENT").exists()
            if not may_create and not exists:
                raise OSError(f"the database {path} has vanished")
            self._open[number] = self._rocksdb.open(str(path), self._options())
            if not exists:
                self._sequences[number] = 0  # RocksDB counts each entry of a batch
        return self._open[number]

    def _write(self, number: int, keys: Sequence[bytes], values: Sequence[bytes], may_create: bool) -> None:
        database = self._database(number, may_create)
        batch = self._rocksdb.WriteBatch()  # can be written only once
        deque(map(batch.add, keys, values), maxlen=0)
        sequence = self._sequences.pop(number, None)  # after a failure it is not known what RocksDB has counted
        database.write(batch)
        if sequence is not None:
            self._sequences[number] = sequence + len(keys)

    def _probe(self, number: int) -> None:
        probe = self.path(number) / "probe"
        try:
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, PROBE_BYTES)
        finally:
            probe.unlink(missing_ok=True)

    def _options(self) -> Any:
        options = self._rocksdb.Option()
        options.create_if_missing(True)
        buffer_bytes = max(MIN_WRITE_BUFFER_BYTES, min(WRITE_BUFFER_BYTES, self._database_bytes // MAX_WRITE_BUFFERS))
        options.optimize_for_point_lookup(max(1, min(CACHE_MB, self._database_bytes >> 20)))
        options.set_allow_mmap_reads(True)
        options.set_write_buffer_size(buffer_bytes)
        options.set_max_write_buffer_number(MAX_WRITE_BUFFERS)
        options.set_min_write_buffer_number_to_merge(MERGED_WRITE_BUFFERS)
        options.set_max_background_jobs(2)
        return options
