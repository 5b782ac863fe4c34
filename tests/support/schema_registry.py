"""A schema registry over HTTP, on a port of its own, that can fail in the ways that registries do."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RegistryServer:
    """Schemas by id, and by subject and version. Start it with `running_registry`."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.serialized: dict[str, bytes] = {}  # a .proto source, and its file descriptor
        self.user: str | None = None  # "user:password" that every request must have
        self.requests: list[str] = []
        self.failure: int | str | None = None  # a status of all responses, or "silence", or "html"
        self.url = ""
        self.closing = threading.Event()

    def add(
        self, schema_id: int, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> None:
        self.schemas[schema_id] = {"schema": schema, "schemaType": kind, "references": references or []}

    def response(self, path: str, headers: Any) -> tuple[int, bytes]:
        """The status and the body that a request gets."""
        self.requests.append(path)
        if self.failure == "silence":
            self.closing.wait()
        if self.failure == "html":
            return 404, b"<html>no such page</html>"
        if isinstance(self.failure, int):
            return self.failure, b'{"error_code": 50001, "message": "it is broken"}'
        if self.user is not None:
            expected = "Basic " + base64.b64encode(self.user.encode()).decode()
            if headers.get("Authorization") != expected:
                return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        parts = urlsplit(path)
        names = [unquote(name) for name in parts.path.strip("/").split("/")]
        found = None
        if names[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(names[2]))
        elif names[0] == "subjects":
            found = self.subjects.get((names[1], int(names[3])))
        if found is None:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        if parse_qs(parts.query).get("format") == ["serialized"]:
            found = {**found, "schema": base64.b64encode(self.serialized[found["schema"]]).decode()}
        return 200, json.dumps(found).encode()


@contextmanager
def running_registry() -> Iterator[RegistryServer]:
    """Serve a registry on a free port of the loopback interface until the block ends."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = registry.response(self.path, self.headers)
            if registry.closing.is_set():
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
