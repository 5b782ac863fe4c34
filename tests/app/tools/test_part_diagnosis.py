"""`springtide check` asks the servers of all parts what they hold."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from springtide.app.serving.config import ServeConfig
from springtide.app.tools.part_diagnosis import check_parts
from tests.support.ports import free_port


@contextmanager
def responding(body: bytes):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_each_part_is_asked_what_it_holds() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    with (
        responding(json.dumps({"status": "ok", "range": "1/4"}).encode()) as first,
        responding(json.dumps({"status": "ok"}).encode()) as whole,
        responding(b"<html>") as stranger,
    ):
        found = list(check_parts(ServeConfig(parts=(first, whole, stranger, gone))))
        assert [state for state, _ in found] == ["ok", "problem", "problem", "note"]
        texts = [text for _, text in found]
        assert texts[0] == f"part: 1/4 at {first} answers"
        assert 'holds part 1/1: start it with range = "2/4"' in texts[1]
        assert "is not a Springtide server: it responded 200" in texts[2]
        assert f"part 4/4 at {gone} does not answer" in texts[3]


def test_a_part_alone_and_a_server_of_everything() -> None:
    assert list(check_parts(ServeConfig())) == []
    ((state, text),) = check_parts(ServeConfig(range="1/4"))
    assert (state, text.startswith("part: this server looks up the rows of 1/4, and nothing else")) == ("note", True)
