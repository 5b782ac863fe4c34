"""The routes that a follower uses, over a hand-written log, with faults on demand: cut connections, flipped bits."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from springtide_client.errors import LogError
from springtide_client.format.records import Head
from springtide_client.log.directory import LogDirectory
from tests.support.logs import HandWrittenLog

TOKEN = "let me in"


class FaultyLogServer:
    """Serves until closed; `requests` holds (path, Range header)."""

    def __init__(self, log: HandWrittenLog, port: int = 0) -> None:
        self.log, self.directory = log, LogDirectory(log.path)
        self.requests: list[tuple[str, str | None]] = []
        self.cut_files_at: int | None = None  # the next file ends after this many bytes
        self.flip_next_record = False
        self.held = ""  # requests whose path contains this wait for `released`
        self.released = threading.Event()
        self.is_closed = False
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.respond(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # the client closed the connection before the end of the response

        self._server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.01))
        self._thread.start()

    def close(self) -> None:
        self.is_closed = True
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def respond(self, request: BaseHTTPRequestHandler) -> None:
        if self.is_closed:  # a connection that was kept open ends with its server
            request.close_connection = True
            return
        parts = urlsplit(request.path)
        self.requests.append((request.path, request.headers.get("Range")))
        if self.held and self.held in request.path:
            self.released.wait()
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(request, 401, "the token is missing or wrong", "send Authorization: Bearer <token>")
            return
        base = self.directory.newest_base()
        if base is None:
            self.refuse(request, 503, "the log has no base yet", "start a trainer")
        elif parts.path == "/v1/bases/latest":
            self.send(request, json.dumps({"number": int(base.name[5:])}).encode())
        elif parts.path == "/v1/versions/latest":
            self.send(request, json.dumps({"version": self.log.number}).encode())
        elif parts.path.startswith("/v1/bases/"):
            self.send_file(request, parts.path)
        elif parts.path == "/v1/log":
            self.stream(request, int(parse_qs(parts.query)["after"][0]))

    def refuse(self, request: BaseHTTPRequestHandler, status: int, message: str, hint: str) -> None:
        body = json.dumps({"error": {"code": "x", "message": message, "hint": hint}}).encode()
        self.send(request, body, status)

    def send(self, request: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def send_file(self, request: BaseHTTPRequestHandler, path: str) -> None:
        _, _, _, number, _, name = path.split("/")
        file = self.log.path / f"base-{int(number):020d}" / name
        if not file.exists():
            self.refuse(request, 410, f"{name} was deleted", "start again")
            return
        body = file.read_bytes()
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        request.send_response(206 if "Range" in request.headers else 200)
        request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        if self.cut_files_at is not None and name.startswith("rows"):
            request.wfile.write(body[start : self.cut_files_at])
            self.cut_files_at = None
            request.close_connection = True
        else:
            request.wfile.write(body[start:])

    def stream(self, request: BaseHTTPRequestHandler, after: int) -> None:
        """Send frames as one chunked response, as they are written; 410 if `after` is in no segment and not a base."""
        base = self.directory.newest_base()
        numbers = {int(path.name[5:]) for path in self.directory.bases()}
        cursor = self.directory.follow(None)
        old, new = [], []
        for record in self.directory.records(None):
            (old if record.number <= after else new).append(record)
        if after not in numbers and after not in {record.number for record in old}:
            self.refuse(request, 410, f"version {after} was deleted", "start again from /v1/bases/latest")
            return
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        head = Head(new[-1].number, new[-1].checksum) if new else Head(self.log.number, self.log.checksum)
        cursor = self.directory.follow(head)
        assert base is not None
        while not self.is_closed:
            for record in new:
                frame = bytearray(record.frame())
                if self.flip_next_record:
                    frame[-1] ^= 1
                    self.flip_next_record = False
                for piece in (bytes(frame[:60]), bytes(frame[60:])):
                    request.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            try:
                new = cursor.read()
            except LogError:
                break
            if not new:
                time.sleep(0.005)
        cursor.close()
        request.wfile.write(b"0\r\n\r\n")
