"""A log over HTTP: bases are fetched into a folder, records arrive on one open answer as the trainer writes them."""

import http.client
import logging
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

from springtide_client.errors import CorruptRecordError, LogError, SpringtideError
from springtide_client.format.records import HEADER, Record, Tip, parse_header
from springtide_client.http.base_cache import BaseCache
from springtide_client.http.http_client import TIMEOUT_SECONDS, HttpClient

# records received and not yet applied; a full queue stops reading, and TCP then slows the server
QUEUE_BYTES = 64 << 20
# a record larger than this is taken for damage in its length
MAX_RECORD_BYTES = 4 << 30
# a thread that is amid connecting is not waited for longer; it ends by itself
CLOSE_SECONDS = 2.0
# what bases may take on disk
DISK_BYTES = 20 << 30

logger = logging.getLogger(__name__)


class HttpLog:
    """A `Source` that reads a server's /v1/bases and /v1/log."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        cache_dir: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Bases take at most `disk_bytes` in `cache_dir`; without it in an own folder, which `close` removes."""
        self._server = HttpClient(url, token=token, timeout_seconds=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._own_folder = None if cache_dir is not None else Path(tempfile.mkdtemp(prefix="springtide-"))
        folder = cache_dir or self._own_folder
        assert folder is not None
        # also where nobody closes this: when it is forgotten, and at the process's end
        self._let_go = weakref.finalize(self, _remove, self._own_folder, os.getpid())
        self._bases = BaseCache(self._server, folder, max_bytes=disk_bytes)
        self._news = threading.Event()
        self._arrived: Path | None = None
        self._fetching: threading.Thread | None = None

    def newest_base(self) -> Path | None:
        """The server's newest base, fetched unless it is here; None while the server has none."""
        self._arrived = self._bases.newest()
        return self._arrived

    def bases_before(self, than: Path) -> list[Path]:
        """None: what was fetched was checked on the way, and the server chooses which."""
        return []

    def local_base(self) -> Path | None:
        """The newest base that was fetched; meanwhile a newer one is, by a thread, for that may take minutes."""
        if self._fetching is None or not self._fetching.is_alive():
            self._fetching = threading.Thread(target=self._fetch, name="springtide-base", daemon=True)
            self._fetching.start()
        return self._arrived

    def _fetch(self) -> None:
        try:
            self.newest_base()
        except (SpringtideError, OSError, ValueError) as error:
            if not self._server.is_closed:
                logger.warning("a newer base could not be fetched: %s", error)

    def follow(self, after: Tip | None) -> "RecordStream":
        """The records behind a version as they arrive; waits until the server's newest is among them."""
        if after is None:
            raise LogError("over HTTP a log is followed from a base")
        newest = self._server.get_json("/v1/versions/latest")
        stream = RecordStream(self._server, after.number, self._news)
        stream.wait_for(int(newest["version"]), self._timeout_seconds)
        return stream

    def wait(self, seconds: float) -> None:
        """Return once a record has arrived, or when the time is over."""
        self._news.wait(seconds)
        self._news.clear()

    def stop(self) -> None:
        """Wake who waits, and end every request under way."""
        self._news.set()
        self._server.close()

    def close(self) -> None:
        """`stop`; remove the own folder, whose bases stay readable where they are mapped."""
        self.stop()
        if self._fetching is not None:
            self._fetching.join(timeout=CLOSE_SECONDS)
        self._let_go()


def _remove(folder: Path | None, pid: int) -> None:
    if folder is not None and os.getpid() == pid:  # a forked child has none of its own
        shutil.rmtree(folder, ignore_errors=True)


class RecordStream:
    """One answer of /v1/log, read by a thread into a bounded queue."""

    def __init__(self, server: HttpClient, after: int, news: threading.Event) -> None:
        self._server = server
        self._answer = server.open(f"/v1/log?after={after}")
        self._news = news
        self._changed = threading.Condition()
        self._records: list[Record] = []
        self._queued_bytes = 0
        self._received = after
        self._error: SpringtideError | None = None
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="springtide-log", daemon=True)
        self._thread.start()

    def read(self) -> list[Record]:
        """What has arrived; once that is taken, raises what ended the stream."""
        with self._changed:
            if not self._records and not self._is_open:
                raise self._error or LogError("the server ended the stream of its log: it is opened again")
            records, self._records, self._queued_bytes = self._records, [], 0
            self._changed.notify_all()
        return records

    def wait_for(self, number: int, timeout_seconds: float) -> None:
        """Return once the record `number` has arrived, the queue is full, or nothing more will come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._received >= number or not self._is_open or self._queued_bytes >= QUEUE_BYTES,
                timeout_seconds,
            )

    def close(self) -> None:
        """End the connection and the thread."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
            self._answer.abort()
        self._thread.join(timeout=CLOSE_SECONDS)
        self._answer.close()

    def _run(self) -> None:
        error: SpringtideError | None = None
        try:
            while self._is_open and (record := self._read_patiently()) is not None:
                with self._changed:
                    self._records.append(record)
                    self._queued_bytes += record.num_bytes
                    self._received = record.number
                    self._changed.notify_all()
                    self._news.set()
                    self._changed.wait_for(lambda: self._queued_bytes < QUEUE_BYTES or not self._is_open)
        except SpringtideError as caught:
            error = caught
        except (OSError, http.client.HTTPException, ValueError) as caught:
            error = LogError(f"the stream of the log broke off ({caught or type(caught).__name__}): it is opened again")
        with self._changed:
            self._error, self._is_open = error, False
            self._changed.notify_all()
        self._news.set()

    def _read_patiently(self) -> Record | None:
        while True:
            try:
                return self._read()
            except TimeoutError:
                # a trainer that rests, or a peer that vanished without a word: a new request tells the two apart
                self._answer.close()
                answer = self._server.open(f"/v1/log?after={self._received}")
                with self._changed:
                    self._answer = answer
                    if not self._is_open:
                        return None

    def _read(self) -> Record | None:
        head = self._answer.response.read(HEADER.size)
        if len(head) < HEADER.size:
            return None
        header = parse_header(head)
        if header.length > MAX_RECORD_BYTES:
            raise CorruptRecordError(f"a record claims {header.length:,} bytes")
        payload = self._answer.response.read(header.length)
        return Record.verify_payload(header, payload) if len(payload) == header.length else None
