"""A token endpoint (OAuth 2.0, client credentials) for tests."""

import base64
import json
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CLIENT_ID, CLIENT_SECRET = "springtide", "a secret/with+signs"


class TokenServer:
    """Answers with `status` and, if that is 200, a token of `make_token`. `scopes` lists what was asked for."""

    def __init__(self, make_token: Callable[[], str], *, expires_in: int | None = 300) -> None:
        self.make_token, self.expires_in, self.status = make_token, expires_in, 200
        self.scopes: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, document = server.answer(self.headers.get("Authorization", ""), form)
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/token"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """The status and the document of a response."""
        if self.status != 200:
            return self.status, {}
        quoted = ":".join(urllib.parse.quote_plus(part) for part in (CLIENT_ID, CLIENT_SECRET))
        if authorization != f"Basic {base64.b64encode(quoted.encode()).decode()}":
            return 401, {"error": "invalid_client"}
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        self.scopes.append(form.get("scope", [""])[0])
        life = {} if self.expires_in is None else {"expires_in": self.expires_in}
        return 200, {"access_token": self.make_token(), "token_type": "Bearer"} | life

    def __enter__(self) -> "TokenServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
