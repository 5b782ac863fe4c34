"""Real worker processes at one address are killed, restarted one by one and stopped, and no request fails."""

import os
import re
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.serve import serve
from tests.support.waiting import wait_until

USER = 0


class Running:
    """A server of several processes."""

    def __init__(self, log, workers: int) -> None:
        read_end, write_end = os.pipe()
        self.pid = os.fork()  # this process has imported it all, which takes seconds
        if self.pid == 0:
            try:
                config = ServeConfig(port=0, workers=workers)
                serve(log.path, config, on_listening=lambda url: os.write(write_end, url.encode()))
            except BaseException:
                os._exit(1)
            os._exit(0)
        os.close(write_end)
        self.url = os.read(read_end, 100).decode()
        os.close(read_end)

    def ask(self, path: str) -> httpx.Response:
        """On a connection of its own."""
        return httpx.get(self.url + path, timeout=300)

    def metric(self, name: str, labels: str = "") -> float:
        """The sum over labels that begin like that."""
        text = self.ask("/metrics").text
        return sum(map(float, re.findall(rf"^{name}(?:{{{re.escape(labels)}.*)? (\S+)$", text, re.M)))

    def workers(self) -> set[int]:
        """The children."""
        return set(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()))

    def end(self, number: signal.Signals | None = None) -> int:
        """The exit code, of that signal or of one that was sent."""
        if number is not None:
            os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


class Clients:
    """Clients that send requests all the time, on kept and on new connections; failed ones are recorded."""

    def __init__(self, running: Running) -> None:
        self._stopping = threading.Event()
        self.failures: list[object] = []
        self.num_answers = 0
        host, port = running.url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        body = b'{"ids":[1,2]}'
        request = (
            b"POST /v1/embeddings/user_id HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + (b"X-Normal-Path: 1\r\nConnection: close\r\n" if number == 0 else b"")
            + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        connection = None
        while not self._stopping.is_set():
            try:
                connection = connection or socket.create_connection(self._address, timeout=300)
                connection.sendall(request)
                answer = connection.recv(65_536)
                while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
                    answer += connection.recv(65_536) or self._cut()
                if not answer.startswith(b"HTTP/1.1 200"):
                    self.failures.append(answer)
                self.num_answers += 1
                if b"connection: close" in answer:
                    connection.close()
                    connection = None
            except OSError as error:
                self.failures.append(error)
                connection = None
            self._stopping.wait(0.002)
        if connection is not None:
            connection.close()

    def _cut(self) -> bytes:
        raise OSError("the answer was cut short")

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(300)


@pytest.fixture
def running(world):
    world.log.start_epoch()
    world.log.publish({(USER, 1): [1, 2, 3, 4]})
    made = Running(world.log, 2)
    yield made
    if made.pid:
        made.end(signal.SIGKILL)


def test_no_request_fails_during_a_rolling_restart_and_a_killed_worker_is_replaced(world, running) -> None:
    first = running.workers()
    assert len(first) == 2
    wait_until(lambda: running.metric("springtide_workers") == 2 and running.metric("springtide_ready") == 1)
    clients = Clients(running)
    try:
        os.kill(running.pid, signal.SIGHUP)
        version = world.log.publish({(USER, 1): [5, 6, 7, 8]})
        wait_until(lambda: not running.workers() & first and len(running.workers()) == 2)
    finally:
        clients.stop()
    assert clients.failures == []
    # the counts of the first two workers are not lost, whichever worker is scraped
    wait_until(lambda: running.metric("springtide_http_requests_total", 'route="/v1/embeddings') == clients.num_answers)
    assert running.metric("springtide_worker_exits_total", 'how="replaced"') == 2
    assert running.metric("springtide_version") == version
    killed = min(running.workers())
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: running.metric("springtide_worker_exits_total", 'how="died"') == 1)
    assert running.ask("/v1/embeddings/user_id/1").json()["vector"] == [5, 6, 7, 8]
    wait_until(lambda: running.metric("springtide_workers") == 2)
    last = running.workers()
    host, port = running.url.removeprefix("http://").split(":")
    body = b'{"instances":[{"user_id":1}]}'
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection((host, int(port)), timeout=300) as slow:
        slow.sendall(head + body[:-1])
        wait_until(lambda: running.metric("springtide_http_requests_in_flight") == 1)
        with httpx.stream("GET", f"{running.url}/v1/log?after={version}") as answer:
            assert answer.status_code == 200
            os.kill(running.pid, signal.SIGTERM)
            for _ in answer.iter_raw():  # until it ends
                pass
        slow.sendall(body[-1:])
        response = b"".join(iter(lambda: slow.recv(65_536), b""))  # until it is closed
        assert response.startswith(b"HTTP/1.1 200")
    assert running.end() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in last)


def test_workers_die_with_their_parent(running) -> None:
    workers = running.workers()
    running.end(signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
