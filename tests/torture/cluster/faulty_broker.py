"""A broker that can be paused, behind a proxy whose connections can be broken.

It is Tansu, or the session's node of Apache Kafka.
"""

import os
import signal
import socket
import subprocess
import threading
from contextlib import suppress

from springtide.stream.broker.embedded import find_broker_binary
from tests.support.apache_kafka import shared_node
from tests.support.broker import USES_APACHE
from tests.support.ports import free_port
from tests.support.waiting import wait_until


class FaultyBroker:
    """`address` is that of the proxy, on this host; the broker advertises it to all clients."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._is_disconnected = False
        self._open: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None
        node = shared_node() if USES_APACHE else None
        self._listener = socket.create_server((host, 0 if node is None else node.proxy_port))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        if node is None:
            self._port = free_port()
            self._start_tansu()
        else:
            self._port, self._pid = int(node.proxied_address.rpartition(":")[2]), node.pid
            node.delete_topics("clicks", "clicks.dead", "impressions", "impressions.dead", "actions")
        threading.Thread(target=self._accept, daemon=True).start()

    def _start_tansu(self) -> None:
        urls = ["--listener-url", f"tcp://127.0.0.1:{self._port}", "--advertised-listener-url", f"tcp://{self.address}"]
        self._process = subprocess.Popen(
            [find_broker_binary(), "broker", *urls, "--storage-engine", "memory://tansu/", "--silent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._pid = self._process.pid
        wait_until(self._is_listening, "the broker")

    def _is_listening(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=60.0).close()
            return True
        return False

    def pause(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def follow(self, pid: int) -> None:
        """The broker runs again, as another process."""
        self._pid = pid

    def disconnect(self) -> None:
        """Break every connection, and refuse new ones."""
        self._is_disconnected = True
        while self._open:
            self._close(self._open.pop())

    def reconnect(self) -> None:
        self._is_disconnected = False

    def close(self) -> None:
        self.disconnect()
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept() that holds the port
        self._listener.close()
        if self._process is None:
            self.resume()
            return
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
            try:
                theirs = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the broker is down
                ours.close()
                continue
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
