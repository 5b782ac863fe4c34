"""A server that answers what pyarrow's S3 client asks of it: lists a folder's files as objects of a bucket, reads them.

Over real HTTP, on loopback. It checks no signature, and knows no writing.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


class S3Handler(BaseHTTPRequestHandler):
    """The requests that reading needs: HEAD, GET with a range, and ListObjectsV2."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").strip("/")
        if not key:
            self._send(200, self._listing(parse_qs(url.query)), "application/xml")
        elif (file := self.folder / key).is_file():
            self._send_part(file.read_bytes(), with_body=with_body)
        else:
            self._send(404, b"", "application/xml")

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        objects, folders = [], set()
        for key in keys:
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                size = (self.folder / key).stat().st_size
                objects.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        common = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(objects) + len(common)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(objects)}{''.join(common)}</ListBucketResult>"
        ).encode()

    def _send_part(self, content: bytes, *, with_body: bool) -> None:
        asked = self.headers.get("Range")
        if asked is None:
            self._send(200, content, "application/octet-stream", with_body=with_body)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1, len(content)) if last else len(content)
        self._send(206, content[start:stop], "application/octet-stream", f"bytes {start}-{stop - 1}/{len(content)}")

    def _send(
        self, status: int, body: bytes, kind: str, content_range: str | None = None, *, with_body: bool = True
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if with_body and self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serve_s3(folder: Path) -> Iterator[str]:
    """Serve a folder as a bucket; yields the beginning of its URIs, and their query."""
    handler = type("Handler", (S3Handler,), {"folder": folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
