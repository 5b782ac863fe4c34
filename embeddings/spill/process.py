"""The spill's databases in processes of their own: `python -m embeddings.spill.process`, and the workers it forks.

A call into RocksDB holds the interpreter's lock, so it is another interpreter's. Requests are JSON over a socket for
each lane, rows lie in shared memory. This one deals requests out to the workers; all end when its parent does.
"""

import json
import mmap
import select
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from embeddings.spill.databases import path_of
from embeddings.spill.lane import ChildLane, Setting
from embeddings.spill.worker import NUM_PARTS, bounds_of, die_with_parent, failed, fork_workers, last_key, part_of


class PartError(Exception):
    """What a worker answered that could not do it."""

    def __init__(self, answer: list[Any]) -> None:
        super().__init__(answer)
        self.answer = answer


class Router:
    """Answers one request after another, finds before the keeper's; the workers do their parts at the same time."""

    def __init__(self, folder: Path, lanes: Sequence[ChildLane], workers: Sequence[socket.socket]) -> None:
        self.folder, self.keeper, self.workers = folder, lanes[0], workers
        self._poll = select.poll()
        for lane in lanes:
            self._poll.register(lane.connection, select.POLLIN)
        self._lanes = {lane.connection.fileno(): lane for lane in lanes}

    def run(self) -> None:
        while True:
            ready = [self._lanes[descriptor] for descriptor, _ in self._poll.poll()]
            for lane in ready:
                if lane is not self.keeper:
                    self._answer(lane)
            if self.keeper in ready:
                self._answer(self.keeper)

    def _answer(self, lane: ChildLane) -> None:
        request = lane.connection.recv(1 << 16)
        if not request:
            raise SystemExit(0)  # the parent is gone, or has no more use for this process
        name, *arguments = json.loads(request)
        try:
            answer: list[Any] = ["done", *getattr(self, name)(lane, *arguments)]
        except PartError as error:
            answer = error.answer
        except OSError as error:
            answer = failed(error)
        lane.connection.send(json.dumps(answer).encode())

    # requests

    def find(self, lane: ChildLane, number: int, num: int) -> tuple[()]:
        """The values of the keys in memory, which ascend."""
        self._by_part("find", lane, number, num)
        return ()

    def write(self, lane: ChildLane, number: int, num: int, marks: bool, may_create: bool) -> tuple[()]:
        """Keys, which ascend, and records from memory into a database."""
        self._create(number, may_create)
        self._by_part("write", lane, number, num, marks)
        return ()

    def scan(self, lane: ChildLane, number: int, after: str, num: int) -> tuple[int, str | None]:
        """Up to so many entries after a key, into memory; how many, and where to go on if there may be more."""
        part = _next_part(after)
        (answer,) = self._call({part: ("scan", lane.index, number, after, num)})
        return answer[0], _go_on(part, answer[1])

    def raise_to(self, lane: ChildLane, horizons: list[tuple[int, int]]) -> tuple[()]:
        """Horizons for the moves to come."""
        self._call(dict.fromkeys(range(NUM_PARTS), ("raise_to", horizons)))
        return ()

    def move(
        self, lane: ChildLane, source: int, target: int, after: str, num: int, may_create: bool
    ) -> tuple[int, int, str | None]:
        """Worker.move, of the part that comes next."""
        self._create(target, may_create)
        part = _next_part(after)
        (answer,) = self._call({part: ("move", lane.index, source, target, after, num)})
        return answer[0], answer[1], _go_on(part, answer[2])

    def destroy(self, lane: ChildLane, number: int) -> tuple[()]:
        self._call(dict.fromkeys(range(NUM_PARTS), ("close", number)))
        shutil.rmtree(path_of(self.folder, number), ignore_errors=True)
        return ()

    def _create(self, number: int, may_create: bool) -> None:
        """All parts of a database at once: what exists, exists whole."""
        if may_create:
            path_of(self.folder, number).mkdir(exist_ok=True)
            self._call(dict.fromkeys(range(NUM_PARTS), ("create", number)))

    def _by_part(self, name: str, lane: ChildLane, number: int, num: int, *more: Any) -> None:
        bounds = bounds_of(lane, num)
        pairs = enumerate(pairwise(bounds))
        self._call(
            {
                part: (name, lane.index, number, start, stop - start, *more)
                for part, (start, stop) in pairs
                if stop > start
            }
        )

    def _call(self, requests: dict[int, tuple[Any, ...]]) -> list[list[Any]]:
        """The workers' answers, when all have answered; PartError with the worst where one failed."""
        try:
            for part, request in requests.items():
                self.workers[part].send(json.dumps(request).encode())
            answers = [self.workers[part].recv(1 << 16) for part in requests]
        except OSError:
            answers = [b""]
        if not all(answers):
            raise SystemExit(1)  # a worker has died: the parent starts all of them again
        found = [json.loads(answer) for answer in answers]
        failures = [answer for answer in found if answer[0] == "failed"]
        if failures:
            raise PartError(max(failures, key=lambda answer: bool(answer[1])))
        return [answer[1:] for answer in found]


def _next_part(after: str) -> int:
    key = bytes.fromhex(after)
    return part_of(key) + (key == last_key(part_of(key))) if key else 0


def _go_on(part: int, last: str | None) -> str | None:
    """After which key, or None at the end of all parts."""
    return last or (last_key(part).hex() if part + 1 < NUM_PARTS else None)


def main() -> None:
    setting = Setting(**json.loads(sys.argv[1]))
    die_with_parent(setting.parent)
    # Ctrl-C goes to a whole group, and the parent still needs its rows while it ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shape = setting.shape
    memory = mmap.mmap(setting.memory, shape.num_bytes * len(setting.sockets))
    lanes = [ChildLane(socket.socket(fileno=fd), memory, index, shape) for index, fd in enumerate(setting.sockets)]
    try:
        import rocksdbpy
    except ImportError as error:
        refusal = ["failed", True, f"this Python has no RocksDB ({error})"]
        lanes[0].connection.send(json.dumps(refusal).encode())
        return
    folder = Path(setting.folder)
    workers = fork_workers(folder, setting.record_bytes, lanes, rocksdbpy)
    lanes[0].connection.send(json.dumps(["done"]).encode())
    Router(folder, lanes, workers).run()


if __name__ == "__main__":
    main()
