"""Requests to servers of parts: connections that stay open, and what goes wrong with them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.parts import part_servers
from springtide_client.parts.part_servers import PartServers, check_url
from tests.support.waiting import wait_until


class Answers:
    """A server that answers (status, body) in turn, and counts connections."""

    def __init__(self) -> None:
        self.next: list[tuple[int, bytes]] = []
        self.num_connections, self.hangs_up = 0, False
        self.received: list[tuple[str, bytes]] = []
        self.held = threading.Event()  # responses wait for it
        self.held.set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                owner.num_connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.received.append((self.path, body))
                owner.held.wait()
                status, content = owner.next.pop(0) if owner.next else (200, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = owner.hangs_up  # without a word, as a server that was idle for long

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.01))
        self._thread.start()

    def refuse(self, status: int, code: str) -> None:
        self.next.append((status, json.dumps({"error": {"code": code, "message": "no"}}).encode()))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def answers():
    made = [Answers(), Answers()]
    yield made
    for one in made:
        one.close()


def test_connections_are_reused_and_renewed(answers) -> None:
    first, second = answers
    servers = PartServers([first.url, second.url + "/below/"])
    for number in range(3):
        sent = {0: ("/x", b"%d" % number), 1: ("/y", b"one")}
        assert servers.post_all(sent) == {0: b"%d" % number, 1: b"one"}
    assert (first.num_connections, second.num_connections) == (1, 1)
    assert second.received[0] == ("/below/y", b"one")
    first.hangs_up = True
    for number in range(3):  # each finds the connection closed that the one before it left
        assert servers.post_all({0: ("/x", b"%d" % number)}) == {0: b"%d" % number}
    servers.close()
    assert servers.post_all({1: ("/y", b"")}) == {1: b""}
    assert servers._idle == [[], []]


def test_refusals_name_the_part_and_leave_the_others_in_order(answers) -> None:
    first, second = answers
    heard: list[tuple[str, str]] = []
    servers = PartServers(
        [first.url, second.url], observe=lambda hash_range, outcome, _: heard.append((hash_range, outcome))
    )
    for status, code, kind in (
        (410, "version_gone", VersionsDifferError),
        (503, "version_not_reached", VersionsDifferError),
        (503, "not_ready", PartError),
        (421, "misdirected", PartError),
    ):
        first.refuse(status, code)
        with pytest.raises(PartError, match=f"part 1/2 at {first.url}: no") as caught:
            servers.post_all({0: ("/x", b""), 1: ("/y", b"stale")})
        assert type(caught.value) is kind
    first.next.append((500, b"<html>"))
    with pytest.raises(PartError, match="it responded 500"):
        servers.post_all({0: ("/x", b"")})
    assert servers.post_all({1: ("/y", b"fresh")}) == {1: b"fresh"}  # not the response that nobody read
    assert heard[0] == ("1/2", "version")
    assert heard[-1] == ("2/2", "ok")
    servers.close()


def test_a_server_that_hangs_is_not_asked_again_at_once(answers, monkeypatch) -> None:
    monkeypatch.setattr(part_servers, "PAUSE_SECONDS", 3600)
    first, second = answers
    first.held.clear()
    servers = PartServers([first.url, second.url], timeout_seconds=0.1)
    for _ in range(3):
        with pytest.raises(PartError, match=r"part 1/2 at .* does not answer"):
            servers.post_all({0: ("/x", b"")})
    wait_until(lambda: first.received)
    assert len(first.received) == 1
    first.held.set()
    servers.close()
    servers = PartServers([first.url, second.url])
    assert servers.post_all({0: ("/x", b"again")}) == {0: b"again"}
    servers.close()


def test_a_forked_process_has_connections_of_its_own(answers, monkeypatch) -> None:
    servers = PartServers([answers[0].url])
    servers.post_all({0: ("/x", b"")})
    (kept,) = servers._idle[0]
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert servers.post_all({0: ("/x", b"child")}) == {0: b"child"}
    assert servers._idle[0] != [kept]
    assert answers[0].num_connections == 2
    servers.close()
    kept.close()


def test_urls_are_checked() -> None:
    assert check_url("http://a:1/") == "http://a:1"
    for url in ("a:1", "ftp://a", "http://", "http://a?x=1", "http://a:x"):
        with pytest.raises(ValueError, match="is not the URL of a server"):
            check_url(url)
