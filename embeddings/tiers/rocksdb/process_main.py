"""The spill's own process, which has the databases: `python -m springtide.embeddings.tiers.rocksdb.process_main`.

A call of RocksDB holds the interpreter's lock, so it is made in another interpreter. Requests are JSON over a socket,
rows are passed in shared memory. The process ends when its parent does.
"""

import json
import mmap
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from springtide.embeddings.tiers.rocksdb.channel import CorruptSpillBlockError, ProcessSettings, ServerChannel
from springtide.embeddings.tiers.rocksdb.databases import Databases, Pairs
from springtide_client.system.parent_death import die_with_parent

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
        request = channel.connection.recv(1 << 16)
        if not request:
            raise SystemExit(0)  # the parent has closed its end, or has died
        name, *arguments = json.loads(request)
        try:
            response: list[Any] = ["done", *getattr(self, name)(channel, *arguments)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            is_corrupt = isinstance(error, CorruptSpillBlockError) or "Corruption" in str(error)
            is_final = is_corrupt or not isinstance(error, Exception)
            response = ["failed", is_final, (str(error) or type(error).__name__)[:MAX_REASON]]
        channel.connection.send(json.dumps(response).encode())

    # the requests, by name

    def find(self, channel: ServerChannel, number: int, num: int) -> tuple[int]:
        """Look up the keys in the channel and write their values to it. Return the number of rows."""
        keys, num_rows = channel.keys(num), 0
        for start in range(0, num, CALL_KEYS):
            values = self.databases.get(number, keys[start : start + CALL_KEYS])
            num_rows += channel.put_values(values, start, num_rows)
        return (num_rows,)

    def write(self, channel: ServerChannel, number: int, num: int, tombstones: bool, may_create: bool) -> tuple[()]:
        """Write the keys and records in the channel, or tombstones of the keys, to a database."""
        keys = channel.keys(num)
        values = [b""] * num if tombstones else channel.records(num)
        for start in range(0, num, CALL_KEYS):
            part = slice(start, start + CALL_KEYS)
            self.databases.write(number, keys[part], values[part], may_create=may_create)
            self._execute_finds()
        return ()

    def sequence(self, channel: ServerChannel, number: int) -> tuple[int | None]:
        """Return the sequence number of the last write to a database; None if it is unknown."""
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
        failed = ["failed", True, f"this Python has no RocksDB ({error})"]
        channels[0].connection.send(json.dumps(failed).encode())
        return
    channels[0].connection.send(json.dumps(["done"]).encode())
    SpillServer(Databases(Path(settings.folder), settings.record_bytes, rocksdbpy), channels).run()


if __name__ == "__main__":
    main()
