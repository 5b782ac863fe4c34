"""A broker that can be frozen, and a wire to it that can be cut."""

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress

from stream.broker.embedded import find_broker_binary
from tests.e2e.workspace import free_port


class FaultyBroker:
    """`address` is that of the wire; clients know no other."""

    def __init__(self) -> None:
        self._port, self._is_cut = free_port(), False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        urls = ["--listener-url", f"tcp://127.0.0.1:{self._port}", "--advertised-listener-url", f"tcp://{self.address}"]
        self._process = subprocess.Popen(
            [find_broker_binary(), "broker", *urls, "--storage-engine", "memory://tansu/", "--silent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10.0
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "no broker"
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def disconnect(self) -> None:
        """Every connection breaks, and none is made."""
        self._is_cut = True
        while self._open:
            self._end(self._open.pop())

    def reconnect(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.disconnect()
        self._listener.close()
        self._process.kill()
        self._process.wait()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                ours.close()
                continue
            theirs = socket.create_connection(("127.0.0.1", self._port))
            self._open += [ours, theirs]
            for source, target in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        self._end(source)
        self._end(target)

    @staticmethod
    def _end(end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
