"""A server seen through a relay that can hold its responses back: slow for as long as a test wants it."""

import contextlib
import socket
import threading


class HeldServer:
    """Relays connections to a server. While `held` is set, bytes of requests and responses wait."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asker, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for pair in ((asker, server), (server, asker)):
                    self._sockets.append(pair[0])
                    self._threads.append(threading.Thread(target=self._relay, args=pair))
                    self._threads[-1].start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(65_536):
                self._flows.wait()
                sink.sendall(received)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
