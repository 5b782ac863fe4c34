"""The spill's databases in a process of their own: `python -m embeddings.spill_process`. The only door to rocksdbpy.

A call into RocksDB holds the interpreter's lock, so it is another interpreter's. Speaks JSON over one socket a lane,
rows lie in shared memory. Knows keys of 10 bytes and values of one size; an empty value is a mark. Imports no numpy:
it starts in a blink, and again when it was killed.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

KEY_BYTES = 10
CALL_KEYS = 1000  # keys of one call of RocksDB: a find waits for no more than one
WRITE_BUFFER_BYTES = 64 << 20
CACHE_MB = 64
LINE = 64
ABSENT, ROW, MARK = 0, 1, 2  # embeddings.spill's
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class LaneShape:
    """A lane's part of the shared memory: keys, kinds, then records."""

    num_keys: int
    record_bytes: int

    @property
    def kinds_at(self) -> int:
        return KEY_BYTES * self.num_keys

    @property
    def records_at(self) -> int:
        return -(-(KEY_BYTES + 1) * self.num_keys // LINE) * LINE

    @property
    def num_bytes(self) -> int:
        return -(-(self.records_at + self.record_bytes * self.num_keys) // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True)
class Setting:
    """What the child is told when it starts."""

    folder: str
    parent: int
    memory: int  # file descriptors
    sockets: list[int]  # the keeper's, then those of finds
    num_keys: int
    record_bytes: int

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @property
    def shape(self) -> LaneShape:
        return LaneShape(self.num_keys, self.record_bytes)


class DamageError(Exception):
    """What was read is not what was written: trying again does not help."""


class Databases:
    """The open databases, `<folder>/<number>`; one opens when it is first used."""

    def __init__(self, folder: Path, rocksdb: Any) -> None:
        self.folder, self._rocksdb = folder, rocksdb
        self._open: dict[int, Any] = {}
        self._failed: set[int] = set()  # a write failed since it was opened

    def get(self, number: int, *, may_create: bool = False) -> Any:
        """Raises rather than beginning anew where a database should be."""
        if number not in self._open:
            path = self.path(number)
            if not may_create and not (path / "CURRENT").exists():
                raise OSError(f"the database {path} has vanished")
            self._open[number] = self._rocksdb.open(str(path), self._options())
        return self._open[number]

    def write(self, number: int, fill: Callable[[Any], object], *, may_create: bool, num_bytes: int) -> None:
        """One batch. A database that refuses writes after a failure opens again once the disk takes bytes."""
        try:
            self._write(number, fill, may_create)
        except Exception:
            if number not in self._failed:
                self._failed.add(number)
                raise
            self._probe(num_bytes)  # raises while there is no room; until then the old handle goes on reading
            self.close(number)
            self._write(number, fill, may_create)
        self._failed.discard(number)

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

    def _write(self, number: int, fill: Callable[[Any], object], may_create: bool) -> None:
        database = self.get(number, may_create=may_create)
        batch = self._rocksdb.WriteBatch()  # a batch written is spent
        fill(batch)
        database.write(batch)

    def _probe(self, num_bytes: int) -> None:
        probe = self.folder / "probe"
        try:
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, WRITE_BUFFER_BYTES // 16 + 2 * num_bytes)
        finally:
            probe.unlink(missing_ok=True)

    def _options(self) -> Any:
        options = self._rocksdb.Option()
        options.create_if_missing(True)
        options.optimize_for_point_lookup(CACHE_MB)
        options.set_allow_mmap_reads(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_background_jobs(2)
        return options


class Lane:
    """A socket and its part of the shared memory; one request at a time."""

    def __init__(self, connection: socket.socket, memory: mmap.mmap, index: int, shape: LaneShape) -> None:
        self.connection, self.shape = connection, shape
        self._memory, self._start = memory, index * shape.num_bytes

    def keys(self, num: int) -> list[bytes]:
        keys = self._read(0, KEY_BYTES * num)
        return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]

    def records(self, num: int) -> list[bytes]:
        width = self.shape.record_bytes
        records = self._read(self.shape.records_at, width * num)
        return [records[at : at + width] for at in range(0, len(records), width)]

    def put_keys(self, keys: list[bytes]) -> None:
        self._write(0, b"".join(keys))

    def put_values(self, values: list[Any], kinds_at: int = 0, records_at: int = 0) -> int:
        """Kinds of values, and the rows among them one after another; how many rows. DamageError for a wrong size."""
        width = self.shape.record_bytes
        try:
            all_rows = set(map(len, values)) <= {width}
        except TypeError:  # None has no length
            all_rows = False
        if all_rows:
            kinds, num_rows = bytes([ROW]) * len(values), len(values)
        else:
            lengths = [-1 if value is None else len(value) for value in values]
            if strange := set(lengths) - {-1, 0, width}:
                raise DamageError(f"a record of {strange.pop()} bytes where {width} are due")
            kinds = bytes(ROW if length > 0 else MARK if length == 0 else ABSENT for length in lengths)
            num_rows, values = kinds.count(ROW), [value for value in values if value]
        self._write(self.shape.kinds_at + kinds_at, kinds)
        self._write(self.shape.records_at + width * records_at, b"".join(values))
        return num_rows

    def _read(self, at: int, num_bytes: int) -> bytes:
        return self._memory[self._start + at : self._start + at + num_bytes]

    def _write(self, at: int, data: bytes) -> None:
        self._memory[self._start + at : self._start + at + len(data)] = data


class Server:
    """Answers one request after another, finds first; ends when its parent does."""

    def __init__(self, databases: Databases, lanes: list[Lane]) -> None:
        self.databases, self.lanes = databases, lanes
        self._poll = select.poll()
        for lane in lanes:
            self._poll.register(lane.connection, select.POLLIN)
        self._by_descriptor = {lane.connection.fileno(): lane for lane in lanes}

    def run(self) -> None:
        keeper = self.lanes[0]
        while True:
            ready = self._ready(None)
            for lane in ready:
                if lane is not keeper:
                    self._answer(lane)
            if keeper in ready:
                self._answer(keeper)

    def let_finds_pass(self) -> None:
        """Between two calls of a long request of the keeper's."""
        for lane in self._ready(0):
            if lane is not self.lanes[0]:
                self._answer(lane)

    def _ready(self, timeout: int | None) -> list[Lane]:
        return [self._by_descriptor[descriptor] for descriptor, _ in self._poll.poll(timeout)]

    def _answer(self, lane: Lane) -> None:
        request = lane.connection.recv(1 << 16)
        if not request:
            raise SystemExit(0)  # the parent is gone, or has no more use for this process
        name, *arguments = json.loads(request)
        try:
            answer: list[Any] = ["done", *getattr(self, name)(lane, *arguments)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            final = isinstance(error, DamageError) or not isinstance(error, Exception) or "Corruption" in str(error)
            answer = ["failed", final, str(error) or type(error).__name__]
        lane.connection.send(json.dumps(answer).encode())

    # requests

    def find(self, lane: Lane, number: int, num: int) -> tuple[int]:
        """The values of the keys in shared memory; the number of rows."""
        database = self.databases.get(number)
        keys, num_rows = lane.keys(num), 0
        for start in range(0, num, CALL_KEYS):
            values = database.multi_get(keys[start : start + CALL_KEYS], False)
            if len(values) != len(keys[start : start + CALL_KEYS]):
                raise DamageError("the database is closed")
            num_rows += lane.put_values(values, start, num_rows)
        return (num_rows,)

    def write(self, lane: Lane, number: int, num: int, marks: bool, may_create: bool) -> tuple[()]:
        """Keys and records from shared memory into a database."""
        keys = lane.keys(num)
        values = [b""] * num if marks else lane.records(num)
        for start in range(0, num, CALL_KEYS):
            self._write_part(number, keys[start : start + CALL_KEYS], values[start : start + CALL_KEYS], may_create)
            self.let_finds_pass()
        return ()

    def scan(self, lane: Lane, number: int, after: str, num: int) -> tuple[int, str | None]:
        """Up to so many entries after a key, into shared memory; how many, and the last key if there may be more."""
        pairs = self._pairs(number, after, num)
        lane.put_keys([key for key, _ in pairs])
        lane.put_values([value for _, value in pairs])
        return len(pairs), pairs[-1][0].hex() if len(pairs) == num else None

    def move(
        self,
        lane: Lane,
        source: int,
        target: int,
        after: str,
        num: int,
        may_create: bool,
        horizons: list[tuple[int, int]],
    ) -> tuple[int, int, str | None]:
        """Entries that are alive, and have no newer one in the target, into it; in shared memory too.

        How many were looked at, how many moved, and the last key if there may be more.
        """
        pairs = self._pairs(source, after, num)
        seen, below = len(pairs), dict(horizons)
        last = pairs[-1][0].hex() if seen == num else None
        alive = [
            (key, value)
            for key, value in pairs
            if not value or int.from_bytes(value[-8:], "little", signed=True) >= below.get(_feature(key), -(2**63))
        ]
        newer = self.databases.get(target, may_create=may_create).multi_get([key for key, _ in alive], False)
        alive = [pair for pair, there in zip(alive, newer, strict=True) if there is None]
        if alive:
            self._write_part(target, [key for key, _ in alive], [value for _, value in alive], may_create)
        lane.put_keys([key for key, _ in alive])
        lane.put_values([value for _, value in alive])
        return seen, len(alive), last

    def destroy(self, lane: Lane, number: int) -> tuple[()]:
        self.databases.destroy(number)
        return ()

    def _write_part(self, number: int, keys: list[bytes], values: list[bytes], may_create: bool) -> None:
        num_bytes = sum(map(len, values)) + KEY_BYTES * len(keys)
        self.databases.write(
            number,
            lambda batch: deque(map(batch.add, keys, values), maxlen=0),
            may_create=may_create,
            num_bytes=num_bytes,
        )

    def _pairs(self, number: int, after: str, num: int) -> list[tuple[bytes, bytes]]:
        # dropped at once: an iterator that outlives its database aborts the process
        start = bytes.fromhex(after) + b"\0"
        iterator = self.databases.get(number).iterator("from", start, 1)
        pairs = [(bytes(key), bytes(value)) for key, value in islice(iterator, num)]
        del iterator
        width = self.lanes[0].shape.record_bytes
        for key, value in pairs:
            if len(key) != KEY_BYTES or len(value) not in (0, width):
                raise DamageError(f"a record of {len(value)} bytes where {width} are due")
        return pairs


def _feature(key: bytes) -> int:
    return int.from_bytes(key[8:], "big")


def _die_with_parent(parent: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, AttributeError, OSError):
        pass  # the sockets tell it too, a little later
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    setting = Setting(**json.loads(sys.argv[1]))
    _die_with_parent(setting.parent)
    # Ctrl-C goes to a whole group, and the parent still needs its rows while it ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shape = setting.shape
    memory = mmap.mmap(setting.memory, shape.num_bytes * len(setting.sockets))
    lanes = [Lane(socket.socket(fileno=fd), memory, index, shape) for index, fd in enumerate(setting.sockets)]
    hello = lanes[0].connection
    try:
        import rocksdbpy
    except ImportError as error:
        hello.send(json.dumps(["failed", True, f"this Python has no RocksDB ({error})"]).encode())
        return
    hello.send(json.dumps(["done"]).encode())
    Server(Databases(Path(setting.folder), rocksdbpy), lanes).run()


if __name__ == "__main__":
    main()
