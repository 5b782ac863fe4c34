"""The parent's side of the spill's process: starts it, passes rows in shared memory, notices when it is gone."""

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from embeddings.errors import SpillError
from embeddings.tiers.rocksdb.channel import KEY_BYTES, ChannelLayout, ProcessSettings
from embeddings.tiers.write_batch import UInt8Array

NUM_FIND_CHANNELS = 4
MAX_CHANNEL_KEYS, MIN_CHANNEL_KEYS, CHANNEL_BYTES = 4096, 64, 4 << 20
ROOT = str(Path(__file__).resolve().parents[3])

# a fork (a data loader's worker, say) amid a start would keep the start's pipes open: the start would wait for its end
_starting = threading.Lock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


class ProcessLostError(Exception):
    """The process is gone; another may be started on the same databases."""


class RequestFailedError(Exception):
    """The process could not do it; `final` where trying again does not help."""

    def __init__(self, final: bool, text: str) -> None:
        super().__init__(text)
        self.final = final


class Channel:
    """A socket and its part of the shared memory. One caller at a time."""

    def __init__(
        self, child: "SpillProcess", connection: socket.socket, memory: UInt8Array, shape: ChannelLayout
    ) -> None:
        self.process, self.layout = child, shape
        self._connection, self._memory = connection, memory

    def call(self, *request: Any, deadline: float) -> list[Any]:
        """The answer; waits without the interpreter's lock. A process silent until the deadline is killed."""
        try:
            if request:
                self._connection.send(json.dumps(request).encode())
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            answer = self._connection.recv(1 << 16)
        except TimeoutError:
            self.process.kill()
            raise ProcessLostError("it did not answer in time") from None
        except OSError:
            answer = b""
        if not answer:
            self.process.lost = True
            raise ProcessLostError("it was killed, or has died")
        values: list[Any]
        name, *values = json.loads(answer)
        if name == "failed":
            raise RequestFailedError(*values)
        return values

    def keys(self, num: int) -> UInt8Array:
        return self._memory[: KEY_BYTES * num]

    def kinds(self, num: int) -> UInt8Array:
        return self._memory[self.layout.kinds_at : self.layout.kinds_at + num]

    def records(self, num: int) -> UInt8Array:
        start = self.layout.records_at
        return self._memory[start : start + self.layout.record_bytes * num]

    def close(self) -> None:
        self._connection.close()


class SpillProcess:
    """One process, with memory and sockets of its own: a late word of a killed one reaches nobody."""

    def __init__(self, folder: Path, record_bytes: int) -> None:
        """Starts it; the first call of the keeper's lane, without a request, waits until it is ready.

        It is killed when the thread that starts it ends.
        """
        with _starting:
            self._start(folder, record_bytes)

    def _start(self, folder: Path, record_bytes: int) -> None:
        self.lost = False
        num_keys = max(MIN_CHANNEL_KEYS, min(MAX_CHANNEL_KEYS, CHANNEL_BYTES // record_bytes))
        shape = ChannelLayout(num_keys, record_bytes)
        num_lanes = 1 + NUM_FIND_CHANNELS
        memory = os.memfd_create("springtide-spill", os.MFD_CLOEXEC)  # no name that could be left behind
        pairs = []
        try:
            os.ftruncate(memory, shape.num_bytes * num_lanes)
            mapped = np.frombuffer(mmap.mmap(memory, shape.num_bytes * num_lanes), np.uint8)
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(num_lanes)]
            theirs = [their.fileno() for _, their in pairs]
            setting = ProcessSettings(str(folder), os.getpid(), memory, theirs, num_keys, record_bytes)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "embeddings.tiers.rocksdb.process_main", setting.dumps()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[memory, *theirs],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))},
            )
        except OSError as error:
            for ours, _ in pairs:
                ours.close()
            raise RequestFailedError(False, f"its process cannot be started: {error}") from None
        finally:
            os.close(memory)
            for _, their in pairs:
                their.close()  # else its end would never be seen
        lanes = [
            Channel(self, ours, mapped[index * shape.num_bytes : (index + 1) * shape.num_bytes], shape)
            for index, (ours, _) in enumerate(pairs)
        ]
        self.worker_channel, self._free = lanes[0], lanes[1:]
        self.num_bytes, self.num_keys = mapped.nbytes, num_keys
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def find_channel(self, deadline: float) -> Iterator[Channel]:
        """A lane of one's own; waits for one where all are taken."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, max(0.0, deadline - time.monotonic())):
                raise SpillError("the spill is busy with other finds, and its disk does not answer")
            lane = self._free.pop()
        try:
            yield lane
        finally:
            with self._changed:
                self._free.append(lane)
                self._changed.notify()
                if self._closed:
                    lane.close()

    def kill(self) -> None:
        self.lost = True
        self.process.kill()

    def close(self) -> None:
        """Ends it at once and waits for its end."""
        self.kill()
        self.process.wait()
        self.worker_channel.close()
        with self._changed:
            self._closed = True
            for lane in self._free:  # the others when they are given back
                lane.close()
