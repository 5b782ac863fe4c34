"""The spill's databases in a process of their own: `python -m embeddings.tiers.rocksdb.process_main`.

A call into RocksDB holds the interpreter's lock, so it is another interpreter's. Requests are JSON over a socket for
each lane, rows lie in shared memory. It ends when its parent does.
"""

import json
import mmap
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from springtide_client.system.parent_death import die_with_parent

from embeddings.tiers.rocksdb.channel import CorruptRecordError, ProcessSettings, ServerChannel
from embeddings.tiers.rocksdb.databases import Databases, Pairs

CALL_KEYS = 1000  # keys of one call of RocksDB: a find waits for no more than one
MAX_TEXT = 2000


class SpillServer:
    """Answers one request after another, finds before the keeper's."""

    def __init__(self, databases: Databases, lanes: list[ServerChannel]) -> None:
        self.databases, self.worker_channel = databases, lanes[0]
        self.cutoffs: dict[int, int] = {}
        self._poll = select.poll()
        for lane in lanes:
            self._poll.register(lane.connection, select.POLLIN)
        self._channels = {lane.connection.fileno(): lane for lane in lanes}

    def run(self) -> None:
        while True:
            ready = self._ready(None)
            for lane in ready:
                if lane is not self.worker_channel:
                    self._answer(lane)
            if self.worker_channel in ready:
                self._answer(self.worker_channel)

    def _answer_finds(self) -> None:
        for lane in self._ready(0):
            if lane is not self.worker_channel:
                self._answer(lane)

    def _ready(self, timeout: int | None) -> list[ServerChannel]:
        return [self._channels[descriptor] for descriptor, _ in self._poll.poll(timeout)]

    def _answer(self, lane: ServerChannel) -> None:
        request = lane.connection.recv(1 << 16)
        if not request:
            raise SystemExit(0)  # the parent is gone, or has no more use for this process
        name, *arguments = json.loads(request)
        try:
            answer: list[Any] = ["done", *getattr(self, name)(lane, *arguments)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            final = (
                isinstance(error, CorruptRecordError) or not isinstance(error, Exception) or "Corruption" in str(error)
            )
            answer = ["failed", final, (str(error) or type(error).__name__)[:MAX_TEXT]]
        lane.connection.send(json.dumps(answer).encode())

    # requests

    def find(self, lane: ServerChannel, number: int, num: int) -> tuple[int]:
        """The values of the keys in memory; the number of rows."""
        keys, num_rows = lane.keys(num), 0
        for start in range(0, num, CALL_KEYS):
            num_rows += lane.put_values(self.databases.get(number, keys[start : start + CALL_KEYS]), start, num_rows)
        return (num_rows,)

    def write(self, lane: ServerChannel, number: int, num: int, marks: bool, may_create: bool) -> tuple[()]:
        """Keys and records from memory into a database."""
        keys = lane.keys(num)
        values = [b""] * num if marks else lane.records(num)
        for start in range(0, num, CALL_KEYS):
            part = slice(start, start + CALL_KEYS)
            self.databases.write(number, keys[part], values[part], may_create=may_create)
            self._answer_finds()
        return ()

    def scan(self, lane: ServerChannel, number: int, after: str, num: int) -> tuple[int, str | None]:
        """Up to so many entries after a key, into memory; how many, and the last key if there may be more."""
        pairs = self.databases.scan(number, bytes.fromhex(after), num)
        _put(lane, pairs)
        return len(pairs), _last(pairs, num)

    def raise_to(self, lane: ServerChannel, horizons: list[tuple[int, int]]) -> tuple[()]:
        """Horizons for the moves to come."""
        self.cutoffs |= dict(horizons)
        return ()

    def move(
        self, lane: ServerChannel, source: int, target: int, after: str, num: int, may_create: bool
    ) -> tuple[int, int, str | None]:
        """Moves entries after a key that are alive, and puts into memory what the target has of their keys.

        How many were looked at, how many are alive, and the last key if there may be more.
        """
        pairs = self.databases.scan(source, bytes.fromhex(after), num)
        moved = self.databases.move(pairs, target, self.cutoffs, may_create=may_create)
        _put(lane, moved)
        return len(pairs), len(moved), _last(pairs, num)

    def destroy(self, lane: ServerChannel, number: int) -> tuple[()]:
        self.databases.destroy(number)
        return ()


def _put(lane: ServerChannel, pairs: Pairs) -> None:
    lane.put_keys([key for key, _ in pairs])
    lane.put_values([value for _, value in pairs])


def _last(pairs: Pairs, num: int) -> str | None:
    return pairs[-1][0].hex() if len(pairs) == num else None


def main() -> None:
    setting = ProcessSettings(**json.loads(sys.argv[1]))
    die_with_parent(setting.parent, signal.SIGKILL)
    # Ctrl-C goes to a whole group, and the parent still needs its rows while it ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shape = setting.layout
    memory = mmap.mmap(setting.memory, shape.num_bytes * len(setting.sockets))
    lanes = [ServerChannel(socket.socket(fileno=fd), memory, index, shape) for index, fd in enumerate(setting.sockets)]
    try:
        import rocksdbpy
    except ImportError as error:
        failed = ["failed", True, f"this Python has no RocksDB ({error})"]
        lanes[0].connection.send(json.dumps(failed).encode())
        return
    lanes[0].connection.send(json.dumps(["done"]).encode())
    SpillServer(Databases(Path(setting.folder), setting.record_bytes, rocksdbpy), lanes).run()


if __name__ == "__main__":
    main()
