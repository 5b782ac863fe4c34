"""Responses: JSON with ETag, endless streams, and files with ranges; an open file may be unlinked meanwhile."""

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from springtide.app.serving.http.errors import ApiError

CHUNK_BYTES = 1 << 20
# no file is longer than 18 digits say: such a range is ignored, and the whole file is sent
RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class JsonResponse(Response):
    """JSON encoded by msgspec: NaN is null, strings stay UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def json_with_etag(request: Request, document: Any, etag: str, headers: Mapping[str, str] | None = None) -> Response:
    """Send the document, or 304 if the client has it already."""
    sent = {"ETag": etag, "Cache-Control": "no-cache", **(headers or {})}
    if etag_matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=sent)
    return JsonResponse(document, headers=sent)


def etag_matches(header: str | None, etag: str) -> bool:
    """Return True if an If-None-Match header names the ETag."""
    if header is None:
        return False
    return header.strip() == "*" or etag in [part.strip().removeprefix("W/") for part in header.split(",")]


class StreamResponse(StreamingResponse):
    """A response that goes on until the client disconnects or the generator ends; `on_end` is called then.

    A `finally` in the generator would not do: it does not run if the client disconnects before the first piece.
    """

    def __init__(self, pieces: AsyncIterator[bytes], media_type: str, on_end: Callable[[], object]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(pieces, headers=headers, media_type=media_type)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class FileResponse(Response):
    """An immutable file: whole, or one range of it. A request for several ranges gets the whole file."""

    def __init__(self, path: Path, *, etag: str, media_type: str = "application/octet-stream") -> None:
        super().__init__(media_type=media_type)
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            hint = "start again from /v1/bases/latest"
            raise ApiError(410, "gone", f"{path.name} was retired", hint) from None
        self._bytes = os.fstat(self._file.fileno()).st_size
        self._etag = etag
        self.extra_headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            status, start, end = self._choose(request)
            headers = {
                "content-type": str(self.media_type),
                "content-length": str(end - start),
                "accept-ranges": "bytes",
                "etag": self._etag,
                "cache-control": "public, max-age=31536000, immutable",
                **self.extra_headers,
            }
            if status == 206:
                headers["content-range"] = f"bytes {start}-{end - 1}/{self._bytes}"
            elif status == 416:
                headers["content-range"] = f"bytes */{self._bytes}"
                del headers["content-type"], headers["cache-control"]  # there is no content
            elif status == 304:
                del headers["content-length"]
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": raw})
            if request.method != "HEAD" and status in (200, 206):
                await self._send(send, start, end)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._file.close()

    def _choose(self, request: Request) -> tuple[int, int, int]:
        """(status, start, end) as in RFC 9110: If-None-Match before Range, and Range only if If-Range agrees."""
        if etag_matches(request.headers.get("if-none-match"), self._etag):
            return 304, 0, 0
        match = RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
        condition = request.headers.get("if-range")
        if match is None or match.groups() == ("", "") or (condition is not None and condition != self._etag):
            return 200, 0, self._bytes
        first, last = match.groups()
        if first == "":
            start, end = max(0, self._bytes - int(last)), self._bytes
        else:
            start, end = int(first), min(int(last) + 1, self._bytes) if last else self._bytes
            if last and int(last) < start:
                return 200, 0, self._bytes
        if start >= self._bytes or start >= end:
            return 416, 0, 0
        return 206, start, end

    async def _send(self, send: Send, start: int, end: int) -> None:
        self._file.seek(start)
        while start < end:
            chunk = await anyio.to_thread.run_sync(self._file.read, min(CHUNK_BYTES, end - start))
            if not chunk:
                raise OSError(f"a file of {self._bytes} bytes ended early, at {start}")
            start += len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
