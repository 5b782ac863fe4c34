"""A broker that can be paused, behind a proxy whose connections can be broken."""

import os
import signal
import socket
import subprocess
import threading
from contextlib import suppress

from springtide.stream.broker.embedded import find_broker_binary
from tests.support.ports import free_port
from tests.support.waiting import wait_until


class FaultyBroker:
    """`address` is that of the proxy, on this host; the broker advertises it to all clients."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._port, self._is_disconnected = free_port(), False
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        urls = ["--listener-url", f"tcp://127.0.0.1:{self._port}", "--advertised-listener-url", f"tcp://{self.address}"]
        self._process = subprocess.Popen(
            [find_broker_binary(), "broker", *urls, "--storage-engine", "memory://tansu/", "--silent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._is_listening, "the broker")
        threading.Thread(target=self._accept, daemon=True).start()

    def _is_listening(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=60.0).close()
            return True
        return False

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def disconnect(self) -> None:
        """Break every connection, and refuse new ones."""
        self._is_disconnected = True
        while self._open:
            self._close(self._open.pop())

    def reconnect(self) -> None:
        self._is_disconnected = False

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
            if self._is_disconnected:
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
        self._close(source)
        self._close(target)

    @staticmethod
    def _close(end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
