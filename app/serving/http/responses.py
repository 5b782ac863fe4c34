"""Files and JSON as HTTP answers: ETag, ranges, HEAD; an open file outlives its name."""

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

from app.serving.http.errors import ApiError

CHUNK_BYTES = 1 << 20
RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")  # beyond that no file reaches: the whole is sent


class JsonResponse(Response):
    """JSON by msgspec: NaN is null, texts stay UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def json_with_etag(request: Request, document: Any, etag: str, headers: Mapping[str, str] | None = None) -> Response:
    """The document, or 304 where the asker has it."""
    sent = {"ETag": etag, "Cache-Control": "no-cache", **(headers or {})}
    if etag_matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=sent)
    return JsonResponse(document, headers=sent)


def etag_matches(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match header names the ETag."""
    if header is None:
        return False
    return header.strip() == "*" or etag in [part.strip().removeprefix("W/") for part in header.split(",")]


class StreamResponse(StreamingResponse):
    """An answer without an end of its own; `on_end` is called when it is over.

    (An asker who left before the first piece was asked for ends no generator: one that has not begun has no end.)
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
    """An immutable file from disk: whole, or one range of it; several ranges at once get the whole."""

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
        """(status, start, end) by RFC 9110: If-None-Match before Range, Range only where If-Range agrees."""
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
