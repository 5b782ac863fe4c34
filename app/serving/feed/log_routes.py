"""The route of the log itself: a live stream of version records for followers, from memory or from the log."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.http.errors import gone, invalid, refuse_if_fixed
from springtide.app.serving.http.middleware import RequestLimits
from springtide.app.serving.http.responses import StreamResponse
from springtide.app.serving.http.route import BINARY, RAW, Routes
from springtide.app.serving.model.replica import Replica
from springtide_client.errors import LogError
from springtide_client.format.records import Head, Record
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name
from springtide_client.log.shard_files import ShardChoice


class LogReader:
    """Reads records after a version. `close` may be called during a read: the reading thread then closes the file."""

    def __init__(self, directory: LogDirectory, start: Head) -> None:
        self.start = start
        self._directory = directory
        self._cursor = directory.follow(start)
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, head: Head, limit_bytes: int) -> list[Record]:
        """Read about `limit_bytes` of the records after `head`; raises LogError as LogCursor.read does."""
        try:
            with self._lock:
                if self._is_closed:
                    return []
                if self._cursor.head != head:  # it fell behind while the client was sent cached records
                    self._cursor.close()
                    self._cursor = self._directory.follow(head)
                return self._cursor.read(limit_bytes)
        finally:
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """Close the file, at once or at the end of the read in progress; never blocks."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._cursor.close()
            finally:
                self._lock.release()


routes = Routes("The model")

BATCH_BYTES = 4 << 20
RETRY_SECONDS = 0.02
# how often the log is read even if the served version has not changed
READ_INTERVAL_SECONDS = 2.0


@routes.add("GET", "/v1/log", scope="read", response={RAW: BINARY}, errors=(409, 410, 422, 503), throttled=False)
async def log(request: Request, after: Annotated[int, Query(ge=0)], range: Annotated[str, Query()] = "1/1") -> Response:
    """Version records after V, byte for byte as in the log, for as long as the client reads; 410 if V is not in it

    range=2/4 leaves out the shard records that a follower of this part of the rows has no use for; range=none is for
    one that holds no rows.
    """
    state = request.app.state
    replica: Replica = state.replica
    limits: RequestLimits = state.limits
    refuse_if_fixed(state.fixed_version)
    replica.require_view()
    try:
        choice = ShardChoice.parse(range)
    except ValueError as error:
        raise invalid(f"range = {range!r}", str(error)) from None
    limits.open_stream()
    try:
        reader, records = await asyncio.to_thread(_open, state.log.path, replica, after, choice)
    except BaseException:
        limits.close_stream()
        raise

    def end() -> None:
        reader.close()
        limits.close_stream()

    return StreamResponse(_frames(replica, reader, records, choice), "application/octet-stream", end)


def _open(log_path: Path, replica: Replica, after: int, choice: ShardChoice) -> tuple[LogReader, list[Record]]:
    """A reader positioned after the version, and the first records; ApiError 410 if the log does not continue there."""
    directory = LogDirectory(log_path, choice)
    head = _head(replica, directory, after)
    if head is None:
        raise gone(after, replica.versions.oldest)
    reader = LogReader(directory, head)
    try:
        return reader, reader.read(head, BATCH_BYTES)
    except LogError:
        reader.close()
        raise gone(after, replica.versions.oldest) from None


def _head(replica: Replica, directory: LogDirectory, number: int) -> Head | None:
    """The head of a version that this server has applied, or of a base; None for any other."""
    entry = replica.versions.find(number)
    if entry is not None:
        return entry.head
    try:
        return read_base_manifest(directory.path / base_name(number)).head
    except (OSError, LogError):
        return None


async def _frames(
    replica: Replica, reader: LogReader, records: list[Record], choice: ShardChoice
) -> AsyncIterator[bytes]:
    """1. Records that the server's own follower has just read. 2. If the next one is not among them: the log."""
    head = reader.start
    while not replica.stopping:
        for record in records:
            for piece in choice.cut(record).pieces():
                yield piece
        head = records[-1].head if records else head
        view = replica.view
        is_newest = view is None or view.version <= head.number
        if not (records := replica.records.after(head, BATCH_BYTES)) and is_newest:
            await replica.wait_for_change(READ_INTERVAL_SECONDS)
            records = replica.records.after(head, BATCH_BYTES)
        if not records:
            try:
                records = await asyncio.to_thread(reader.read, head, BATCH_BYTES)
            except LogError:
                return  # what was sent is no longer part of the log; the client's next request will get 410
            if not records and not is_newest:
                await asyncio.sleep(RETRY_SECONDS)  # a new epoch has just begun: nothing can be read for a moment
