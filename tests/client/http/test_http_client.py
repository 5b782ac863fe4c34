"""Requests reach the server directly or through the proxy that the environment names, never through one on loopback."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from springtide_client.errors import GapError, LogError
from springtide_client.http.http_client import HttpClient, NotReadyError

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Handler(BaseHTTPRequestHandler):
    """Responds to /STATUS with that status; records what was requested."""

    requested: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.requested.append((self.path, self.headers.get("Proxy-Authorization")))
        last = self.path.rpartition("/")[2]
        status = int(last) if last.isdigit() else 200
        body = b'{"a": 1}' if status == 200 else b'{"error": {"message": "refused", "hint": "try later"}}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    handler = type("RecordingHandler", (Handler,), {"requested": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url_of(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def requested(server: HTTPServer) -> list[tuple[str, str | None]]:
    return server.RequestHandlerClass.requested


def test_a_document_is_read_below_the_base_url(server) -> None:
    assert HttpClient(url_of(server) + "/prefix/").get_json("/v1/document") == {"a": 1}
    assert requested(server) == [("/prefix/v1/document", None)]


@pytest.mark.parametrize(("status", "error"), [(410, GapError), (503, NotReadyError), (401, LogError), (301, LogError)])
def test_a_refusal_is_an_error_with_the_servers_hint(server, status: int, error: type[LogError]) -> None:
    with pytest.raises(error, match=r"refused \(try later\)"):
        HttpClient(url_of(server)).get(f"/{status}")


def test_a_closed_client_sends_nothing(server) -> None:
    client = HttpClient(url_of(server))
    client.close()
    with pytest.raises(LogError, match="was closed"):
        client.get("/v1/document")
    assert requested(server) == []


def test_a_proxy_of_the_environment_is_used_with_its_credentials(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", url_of(server).replace("//", "//user:pass%20word@"))
    assert HttpClient("http://springtide.example:8000").get_json("/v1/document") == {"a": 1}
    assert requested(server) == [("http://springtide.example:8000/v1/document", "Basic dXNlcjpwYXNzIHdvcmQ=")]


def test_loopback_is_never_reached_through_a_proxy(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for host in ("127.0.0.1", "localhost"):
        url = url_of(server).replace("127.0.0.1", host)
        assert HttpClient(url).get_json("/v1/document") == {"a": 1}


def test_hosts_in_no_proxy_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "springtide.invalid")
    with pytest.raises(LogError, match=r"springtide\.invalid:8000 cannot be reached"):
        HttpClient("http://springtide.invalid:8000").get("/")
