"""The spill's own process, which has the databases: `python -m springtide.embeddings.tiers.rocksdb.process_main`.

A call of RocksDB holds the interpreter's lock, so it is made in another interpreter. Requests are JSON over a socket,
rows are passed in shared memory. The process ends when its parent does.
"""

import json
import mmap
import os
import select
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from springtide.embeddings.tiers.rocksdb.channel import (
    KEY_BYTES,
    CorruptSpillBlockError,
    ProcessSettings,
    ServerChannel,
    receive_message,
    send_message,
)
from springtide_client.system.parent_death import die_with_parent

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
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, PROBE_BYTES)
                else:
                    file.write(bytes(PROBE_BYTES))
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


CALL_KEYS = 1000  # keys of one RocksDB call; a find waits for at most one call of the worker
MAX_REASON = 2000


class SpillServer:
    """Executes one request after another, finds before those of the worker."""

    def __init__(self, databases: Databases, channels: list[ServerChannel]) -> None:
        self.databases, self.worker_channel = databases, channels[0]
        self._poll = select.poll()
        for channel in channels:
            self._poll.register(channel.connection, select.POLLIN)
        self._channels = {channel.connection.fileno(): channel for channel in channels}

    def run(self) -> None:
        while True:
            ready = self._ready(None)
            for channel in ready:
                if channel is not self.worker_channel:
                    self._execute(channel)
            if self.worker_channel in ready:
                self._execute(self.worker_channel)

    def _execute_finds(self) -> None:
        for channel in self._ready(0):
            if channel is not self.worker_channel:
                self._execute(channel)

    def _ready(self, timeout: int | None) -> list[ServerChannel]:
        return [self._channels[descriptor] for descriptor, _ in self._poll.poll(timeout)]

    def _execute(self, channel: ServerChannel) -> None:
        request = receive_message(channel.connection)
        if request is None:
            raise SystemExit(0)  # the parent has closed its end, or has died
        name, *arguments = request
        try:
            response: list[Any] = ["done", *getattr(self, name)(channel, *arguments)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            is_corrupt = isinstance(error, CorruptSpillBlockError) or "Corruption" in str(error)
            is_final = is_corrupt or not isinstance(error, Exception)
            response = ["failed", is_final, (str(error) or type(error).__name__)[:MAX_REASON]]
        send_message(channel.connection, response)

    # the requests, by name

    def find(self, channel: ServerChannel, number: int, num: int) -> tuple[int]:
        """Look up the keys in the channel and write their values to it. Return the number of rows."""
        keys, num_rows = channel.keys(num), 0
        for start in range(0, num, CALL_KEYS):
            values = self.databases.get(number, keys[start : start + CALL_KEYS])
            num_rows += channel.put_values(values, start, num_rows)
        return (num_rows,)

    def write(
        self, channel: ServerChannel, number: int, num: int, tombstones: bool, may_create: bool
    ) -> tuple[int | None]:
        """Write the keys and records in the channel, or tombstones of the keys, to a database.

        Return the sequence number of the last write to it; None if it is unknown.
        """
        keys = channel.keys(num)
        values = [b""] * num if tombstones else channel.records(num)
        for start in range(0, num, CALL_KEYS):
            part = slice(start, start + CALL_KEYS)
            self.databases.write(number, keys[part], values[part], may_create=may_create)
            self._execute_finds()
        return (self.databases.sequence(number),)

    def scan(self, channel: ServerChannel, number: int, after: str, num: int) -> tuple[int, str | None]:
        """Read up to `num` entries after a key. Return how many, and the last key if there may be more."""
        pairs = self.databases.scan(number, bytes.fromhex(after), num)
        _put(channel, pairs)
        return len(pairs), _last(pairs, num)

    def set_database_bytes(self, channel: ServerChannel, num_bytes: int) -> tuple[()]:
        """Prepare databases that are opened from now on for this size; 0: for any."""
        self.databases.set_database_bytes(num_bytes)
        return ()

    def flush(self, channel: ServerChannel, number: int) -> tuple[()]:
        """Write the rows in a database's memory to its tables."""
        self.databases.flush(number)
        return ()

    def destroy(self, channel: ServerChannel, number: int) -> tuple[()]:
        self.databases.destroy(number)
        return ()


def _put(channel: ServerChannel, pairs: Pairs) -> None:
    channel.put_keys([key for key, _ in pairs])
    channel.put_values([value for _, value in pairs])


def _last(pairs: Pairs, num: int) -> str | None:
    return pairs[-1][0].hex() if len(pairs) == num else None


def main() -> None:
    settings = ProcessSettings(**json.loads(sys.argv[1]))
    die_with_parent(settings.parent, signal.SIGKILL)
    try:
        _serve(settings)
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent has died: its sockets are closed before the kernel sends the death signal


def _serve(settings: ProcessSettings) -> None:
    # Ctrl-C is sent to the whole process group, and the parent needs its rows until it has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    layout = settings.layout
    memory = mmap.mmap(settings.memory, layout.num_bytes * len(settings.sockets))
    channels = [
        ServerChannel(socket.socket(fileno=fd), memory, index, layout) for index, fd in enumerate(settings.sockets)
    ]
    try:
        import rocksdbpy
    except ImportError as error:
        send_message(channels[0].connection, ["failed", True, f"this Python has no RocksDB ({error})"])
        return
    send_message(channels[0].connection, ["done"])
    SpillServer(Databases(Path(settings.folder), settings.record_bytes, rocksdbpy), channels).run()


if __name__ == "__main__":
    main()
