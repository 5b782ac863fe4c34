"""A hand-written log with a small model, and a real server over it in a thread of this process."""

import threading
from pathlib import Path

import httpx
import pytest

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.serve import serve
from tests.app.serving.attacked_server import AttackedServer
from tests.app.serving.raw_connection import Connection
from tests.support.logs import HandWrittenLog
from tests.support.toy_model import DIM, TOY_SCHEMA, toy_archive
from tests.support.waiting import wait_until

__all__ = ["DIM", "SCHEMA", "World", "wait_until"]
SCHEMA = TOY_SCHEMA
USER, ITEM, GENRE = 0, 1, 2


def new_log(path: Path) -> HandWrittenLog:
    """A log that does not exist before its `start_epoch`, whose versions carry the present time."""
    return HandWrittenLog(path, TOY_SCHEMA, toy_archive(), wall_clock=True, start=False)


class World:
    """A log, its server, and who asks it."""

    def __init__(self, log: HandWrittenLog) -> None:
        self.log = log
        self._servers: list[tuple[threading.Thread, threading.Event]] = []
        self._clients: list[httpx.Client] = []

    def serve(self, version: int | None = None, **config) -> httpx.Client:
        """Start a server, of one version if it is given; returns a client of it."""
        urls: list[str] = []
        until = threading.Event()
        settings = ServeConfig(**{"port": 0, **config})
        thread = threading.Thread(
            target=serve,
            args=(self.log.path, settings),
            kwargs={"on_listening": urls.append, "until": until, "version": version},
        )
        thread.start()
        self._servers.append((thread, until))
        wait_until(lambda: urls)
        client = httpx.Client(base_url=urls[0], timeout=300)
        self._clients.append(client)
        return client

    def stop(self, client: httpx.Client) -> None:
        """Stop the server of a client, and close the client."""
        place = self._clients.index(client)
        thread, until = self._servers.pop(place)
        self._clients.pop(place).close()
        until.set()
        thread.join(timeout=300)
        assert not thread.is_alive()

    def served(self, client: httpx.Client, number: int) -> None:
        """Return once the version is served."""
        wait_until(lambda: (client.get("/readyz").json().get("version") or 0) >= number)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for thread, until in self._servers:
            until.set()
            thread.join(timeout=300)
            assert not thread.is_alive()


@pytest.fixture
def world(tmp_path):
    made = World(new_log(tmp_path / "log"))
    yield made
    made.close()


@pytest.fixture
def connect():
    """Makes connections, and closes them."""
    made: list[Connection] = []

    def connection(client) -> Connection:
        made.append(Connection(client))
        return made[-1]

    yield connection
    for one in made:
        one.socket.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    made = World(new_log(tmp_path_factory.mktemp("attacked") / "log"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPRINGTIDE_TOKENS", "admin=admin-secret")
        asked = AttackedServer(made)
    yield asked
    asked.close()
    made.close()
