"""The spill's process as its parent sees it: starts it, passes rows in shared memory, notices when it has died."""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.rocksdb.channel import (
    KEY_BYTES,
    ChannelLayout,
    ProcessSettings,
    receive_message,
    send_message,
)
from springtide_client.array_types import UInt8Array

NUM_FIND_CHANNELS = 4
MAX_CHANNEL_KEYS, MIN_CHANNEL_KEYS, CHANNEL_BYTES = 4096, 64, 4 << 20
IMPORT_PATH = str(Path(__file__).parents[4])  # where `springtide` is

# a process forked during the start (a data loader's worker, say) would inherit pipes that the start waits to see closed
_starting = threading.Lock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


class ProcessLostError(Exception):
    """The process has died. Another may be started on the same databases."""


class RequestFailedError(Exception):
    """The process could not execute a request. `final`: a retry does not help."""

    def __init__(self, final: bool, reason: str) -> None:
        super().__init__(reason)
        self.final = final


class Channel:
    """The parent's end of a channel: a socket and a part of the shared memory. One caller at a time."""

    def __init__(
        self, process: "SpillProcess", connection: socket.socket, memory: UInt8Array, layout: ChannelLayout
    ) -> None:
        self.process, self.layout = process, layout
        self._connection, self._memory = connection, memory

    def send(self, *request: Any) -> None:
        """Send a request whose response a `call` without a request fetches. ProcessLostError."""
        try:
            send_message(self._connection, request)
        except OSError:
            self.process.lost = True
            raise ProcessLostError("its process was killed or has died") from None

    def call(self, *request: Any, deadline: float) -> list[Any]:
        """Send a request and return its response, waiting without the interpreter's lock.

        Without a request, wait for a response that is due anyway. A process that does not respond until the deadline is
        killed. ProcessLostError, RequestFailedError.
        """
        try:
            if request:
                send_message(self._connection, request)
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            response = receive_message(self._connection)
        except TimeoutError:
            self.process.kill()
            raise ProcessLostError("its process did not respond in time") from None
        except OSError:
            response = None
        if response is None:
            self.process.lost = True
            raise ProcessLostError("its process was killed or has died")
        name, *values = response
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


def nameless_file() -> int:
    """Return the descriptor of an empty file in memory, or on a disk where the system has none in memory.

    It has no name that could be left behind.
    """
    if hasattr(os, "memfd_create"):
        descriptor: int = os.memfd_create("springtide-spill")
        return descriptor
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SpillProcess:
    """One process with memory and sockets of its own, so that a late response of a killed process is never read."""

    def __init__(self, folder: Path, record_bytes: int) -> None:
        """Start it. The first `call` of the worker channel, without a request, waits until it is ready.

        It is killed when the thread that started it ends.
        """
        with _starting:
            self._start(folder, record_bytes)

    def _start(self, folder: Path, record_bytes: int) -> None:
        self.lost = False
        num_keys = max(MIN_CHANNEL_KEYS, min(MAX_CHANNEL_KEYS, CHANNEL_BYTES // record_bytes))
        layout = ChannelLayout(num_keys, record_bytes)
        num_channels = 1 + NUM_FIND_CHANNELS
        memory = nameless_file()
        pairs = []
        try:
            os.ftruncate(memory, layout.num_bytes * num_channels)
            mapped = np.frombuffer(mmap.mmap(memory, layout.num_bytes * num_channels), np.uint8)
            pairs = [socket.socketpair() for _ in range(num_channels)]
            theirs = [their.fileno() for _, their in pairs]
            settings = ProcessSettings(str(folder), os.getpid(), memory, theirs, num_keys, record_bytes)
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "springtide.embeddings.tiers.rocksdb.process_main", settings.dumps()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[memory, *theirs],
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, [IMPORT_PATH, os.environ.get("PYTHONPATH")]))},
            )
        except OSError as error:
            for ours, _ in pairs:
                ours.close()
            raise RequestFailedError(False, f"its process cannot be started: {error}") from None
        finally:
            os.close(memory)
            for _, their in pairs:
                their.close()  # else the parent would not notice that the process has died
        channels = [
            Channel(self, ours, mapped[index * layout.num_bytes : (index + 1) * layout.num_bytes], layout)
            for index, (ours, _) in enumerate(pairs)
        ]
        self.worker_channel, self._free = channels[0], channels[1:]
        self.num_bytes, self.num_keys = mapped.nbytes, num_keys
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def find_channel(self, deadline: float) -> Iterator[Channel]:
        """A channel for the caller alone; waits until one is free. SpillError at the deadline."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, max(0.0, deadline - time.monotonic())):
                raise SpillError("the spill is busy with other finds, and its disk does not respond")
            channel = self._free.pop()
        try:
            yield channel
        finally:
            with self._changed:
                self._free.append(channel)
                self._changed.notify()
                if self._closed:
                    channel.close()

    def kill(self) -> None:
        self.lost = True
        self.popen.kill()

    def close(self) -> None:
        """Kill it and wait until it has ended."""
        self.kill()
        self.popen.wait()
        self.worker_channel.close()
        with self._changed:
            self._closed = True
            for channel in self._free:  # channels in use are closed by `find_channel`
                channel.close()
