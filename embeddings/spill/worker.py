"""One of the processes that hold the spill's databases, each those of a range of keys.

A call of RocksDB's reads one block after another: keys that lie in several processes are read beside each other.
"""

# K keys of a lane
import gc
import json
import os
import signal
import socket
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from embeddings.spill.databases import Databases, Pairs
from embeddings.spill.lane import ChildLane, DamageError

NUM_PARTS = 4  # divides 256: the first byte of a key says whose it is
BYTES_A_PART = 256 // NUM_PARTS
MAX_TEXT = 2000
TRIM_KEYS = 1 << 14
PR_SET_PDEATHSIG = 1


class Worker:
    """The requests, of the keys and rows in memory that lie in its range."""

    def __init__(self, databases: Databases, lanes: Sequence[ChildLane]) -> None:
        self.databases, self.lanes = databases, lanes
        self.horizons: dict[int, int] = {}
        self._trim, self._untrimmed = _trimmer(), 0

    def run(self, connection: socket.socket) -> None:
        """Until the router is gone."""
        while request := connection.recv(1 << 16):
            name, *arguments = json.loads(request)
            try:
                answer: list[Any] = ["done", *getattr(self, name)(*arguments)]
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic in Rust is no Exception
                answer = failed(error)
            connection.send(json.dumps(answer).encode())

    def find(self, lane: int, number: int, start: int, num: int) -> tuple[()]:
        """The values of keys start..start + num."""
        self.lanes[lane].put_values(self.databases.get(number, self.lanes[lane].keys(num, start)), start)
        self._count(num)
        return ()

    def create(self, number: int) -> tuple[()]:
        """A database, unless there is one."""
        self.databases.get(number, [], may_create=True)
        return ()

    def write(self, lane: int, number: int, start: int, num: int, marks: bool) -> tuple[()]:
        """Keys start..start + num and their records into a database."""
        values = [b""] * num if marks else self.lanes[lane].records(num, start)
        self.databases.write(number, self.lanes[lane].keys(num, start), values)
        self._count(num)
        return ()

    def scan(self, lane: int, number: int, after: str, num: int) -> tuple[int, str | None]:
        """Up to so many entries after a key; how many, and the last key if there may be more."""
        pairs = self.databases.scan(number, bytes.fromhex(after), num)
        _put(self.lanes[lane], pairs)
        return len(pairs), _last(pairs, num)

    def raise_to(self, horizons: list[tuple[int, int]]) -> tuple[()]:
        """Horizons for the moves to come."""
        self.horizons |= dict(horizons)
        return ()

    def move(self, lane: int, source: int, target: int, after: str, num: int) -> tuple[int, int, str | None]:
        """Moves entries after a key that are alive, and puts into memory what the target has of their keys.

        How many were looked at, how many are alive, and the last key if there may be more.
        """
        pairs = self.databases.scan(source, bytes.fromhex(after), num)
        moved = self.databases.move(pairs, target, self.horizons)
        _put(self.lanes[lane], moved)
        return len(pairs), len(moved), _last(pairs, num)

    def close(self, number: int) -> tuple[()]:
        self.databases.close(number)
        return ()

    def _count(self, num: int) -> None:
        """Keys read or written, so many of which leave memory behind."""
        self._untrimmed += num
        if self._untrimmed >= TRIM_KEYS:
            self._untrimmed = 0
            self._trim()


def failed(error: BaseException) -> list[Any]:
    """The answer that tells of it; final where trying again does not help."""
    final = isinstance(error, DamageError) or not isinstance(error, Exception) or "Corruption" in str(error)
    return ["failed", final, (str(error) or type(error).__name__)[:MAX_TEXT]]


def part_of(key: bytes) -> int:
    """Whose key it is."""
    return key[0] // BYTES_A_PART


def bounds_of(lane: ChildLane, num: int) -> list[int]:
    """Where each part's keys begin among a lane's, which ascend, and where the last ends."""
    inner = [bisect_left(range(num), part * BYTES_A_PART, key=lane.first_byte) for part in range(1, NUM_PARTS)]
    return [0, *inner, num]


def last_key(part: int) -> bytes:
    """The highest key that a part may hold."""
    return bytes([(part + 1) * BYTES_A_PART - 1]) + b"\xff" * 9


def fork_workers(folder: Path, record_bytes: int, lanes: Sequence[ChildLane], rocksdb: Any) -> list[socket.socket]:
    """A socket to each. They end when this process does, which no thread may have been started in."""
    gc.freeze()  # else the collector would copy what they share
    ours: list[socket.socket] = []
    for part in range(NUM_PARTS):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        router = os.getpid()
        if os.fork() == 0:
            try:
                die_with_parent(router)
                for other in (mine, *ours, *(lane.connection for lane in lanes)):
                    other.close()
                Worker(Databases(folder, record_bytes, rocksdb, str(part)), lanes).run(theirs)
            finally:
                os._exit(0)
        theirs.close()
        ours.append(mine)
    return ours


def die_with_parent(parent: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, AttributeError, OSError):
        pass  # the sockets tell it too, a little later
    if os.getppid() != parent:
        os._exit(1)


def _trimmer() -> Callable[[], object]:
    """Gives the system back what the C library keeps of blocks and merges: as much again as is in use."""
    try:
        import ctypes

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, AttributeError, OSError):
        return lambda: None
    return lambda: trim(ctypes.c_size_t(0))


def _put(lane: ChildLane, pairs: Pairs) -> None:
    lane.put_keys([key for key, _ in pairs])
    lane.put_values([value for _, value in pairs])


def _last(pairs: Pairs, num: int) -> str | None:
    return pairs[-1][0].hex() if len(pairs) == num else None
