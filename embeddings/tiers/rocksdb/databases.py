"""RocksDB databases by number: the only module that uses rocksdbpy, and only within the spill's own process.

A key has 10 bytes, of which the first eight are the mixed key. A value has one size and ends with the eight bytes of
last-seen, or it is empty: a tombstone.
"""

import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from embeddings.tiers.rocksdb.channel import KEY_BYTES, CorruptSpillBlockError

Pairs = list[tuple[bytes, bytes]]

# small buffers stay in the CPU's cache while they are sorted; four are flushed as one file, so compaction costs no more
WRITE_BUFFER_BYTES, MAX_WRITE_BUFFERS, MERGED_WRITE_BUFFERS = 8 << 20, 8, 4
CACHE_MB = 64
PROBE_BYTES = 4 << 20
NEVER = -(2**63)


class Databases:
    """The databases `<folder>/<number>`, each opened when it is first used."""

    def __init__(self, folder: Path, record_bytes: int, rocksdb: Any) -> None:
        self.folder, self.record_bytes, self._rocksdb = folder, record_bytes, rocksdb
        self._open: dict[int, Any] = {}
        self._failed: set[int] = set()  # those in which a write failed since they were opened

    def get(self, number: int, keys: Sequence[bytes], *, may_create: bool = False) -> list[bytes | None]:
        """The values of keys in their order, None for absent keys."""
        values: list[bytes | None] = self._database(number, may_create).multi_get(keys, False)
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

    def move(self, pairs: Pairs, target: int, cutoffs: Mapping[int, int], *, may_create: bool) -> Pairs:
        """Write live entries to the target, unless it has newer ones. Return their keys with what it has then.

        Repeated after an interruption, it returns the same keys.
        """
        alive = [(key, value) for key, value in pairs if last_seen(key, value) >= cutoffs.get(feature(key), NEVER)]
        there = self.get(target, [key for key, _ in alive], may_create=may_create)
        missing = [pair for pair, value in zip(alive, there, strict=True) if value is None]
        if missing:
            self.write(target, [key for key, _ in missing], [value for _, value in missing], may_create=may_create)
        return [(key, old if new is None else new) for (key, old), new in zip(alive, there, strict=True)]

    def destroy(self, number: int) -> None:
        self.close(number)
        shutil.rmtree(self.path(number), ignore_errors=True)

    def close(self, number: int) -> None:
        database = self._open.pop(number, None)
        self._failed.discard(number)
        if database is not None:
            database.close()

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _database(self, number: int, may_create: bool) -> Any:
        """The open database. OSError if it has vanished: an empty one must not take its place."""
        if number not in self._open:
            path = self.path(number)
            if not may_create and not (path / "CURRENT").exists():
                raise OSError(f"the database {path} has vanished")
            self._open[number] = self._rocksdb.open(str(path), self._options())
        return self._open[number]

    def _write(self, number: int, keys: Sequence[bytes], values: Sequence[bytes], may_create: bool) -> None:
        database = self._database(number, may_create)
        batch = self._rocksdb.WriteBatch()  # can be written only once
        deque(map(batch.add, keys, values), maxlen=0)
        database.write(batch)

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
        options.optimize_for_point_lookup(CACHE_MB)
        options.set_allow_mmap_reads(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_write_buffer_number(MAX_WRITE_BUFFERS)
        options.set_min_write_buffer_number_to_merge(MERGED_WRITE_BUFFERS)
        options.set_max_background_jobs(2)
        return options


def feature(key: bytes) -> int:
    return int.from_bytes(key[8:], "big")


def last_seen(key: bytes, value: bytes) -> int:
    """The last-seen of a row; a tombstone never expires."""
    if not value:
        return -NEVER
    plain = int.from_bytes(value[-8:], "little") ^ int.from_bytes(key[:8], "big")
    return plain - (1 << 64) if plain >= 1 << 63 else plain
