"""A log over HTTP: bases are downloaded into a folder, records arrive on one open response as they are written."""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from urllib.parse import quote

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError, ReadTimeoutError

from springtide_client.errors import CorruptRecordError, LogError, SpringtideError
from springtide_client.format.records import HEADER, Head, Record, parse_header
from springtide_client.http.base_cache import BaseCache
from springtide_client.http.http_client import TIMEOUT_SECONDS, HttpClient, reason_of
from springtide_client.log.shard_files import EVERY_SHARD, FOR_ASKING, ShardChoice
from springtide_client.rows.hash_range import ALL_KEYS, HashRange

# records received and not yet applied; a full queue stops reading, and TCP then slows the server
QUEUE_BYTES = 64 << 20
# a longer record can only be a corrupt length
MAX_RECORD_BYTES = 4 << 30
# a thread that is just connecting is not waited for longer; it ends by itself
CLOSE_SECONDS = 2.0


class RecordStream:
    """A cursor over the records behind one version. `new_records` is set when some have arrived."""

    def __init__(
        self, client: HttpClient, after: int, new_records: threading.Event, choice: ShardChoice = EVERY_SHARD
    ) -> None:
        """`choice`: which shard records the server shall send. Raises like HttpClient.open."""
        self._client, self._choice = client, choice
        self._response = self._open(after)
        self._new_records = new_records
        self._changed = threading.Condition()
        self._records: list[Record] = []
        self._queued_bytes = 0
        self._received = after
        self._error: SpringtideError | None = None
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="springtide-log", daemon=True)
        self._thread.start()

    def read(self) -> list[Record]:
        """Return what has arrived. When the stream has ended and everything is read, raises why."""
        with self._changed:
            if not self._records and not self._is_open:
                raise self._error or LogError("the server ended the stream of its log: reconnecting")
            records, self._records, self._queued_bytes = self._records, [], 0
            self._changed.notify_all()
        return records

    def wait_for(self, number: int, timeout_seconds: float) -> None:
        """Return once version `number` has arrived, the queue is full, or the stream has ended."""
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
            # wakes the thread from its read; raises where the response is already closed
            with contextlib.suppress(ValueError, RuntimeError, OSError):
                self._response.shutdown()
        self._thread.join(timeout=CLOSE_SECONDS)
        self._response.close()

    def _run(self) -> None:
        error: SpringtideError | None = None
        try:
            while self._is_open and (record := self._read_or_reconnect()) is not None:
                with self._changed:
                    self._records.append(record)
                    self._queued_bytes += record.num_bytes
                    self._received = record.number
                    self._changed.notify_all()
                    self._new_records.set()
                    self._changed.wait_for(lambda: self._queued_bytes < QUEUE_BYTES or not self._is_open)
        except SpringtideError as caught:
            error = caught
        except (HTTPError, OSError, ValueError) as caught:
            error = LogError(f"the stream of the log broke off ({reason_of(caught)}): reconnecting")
        with self._changed:
            self._error, self._is_open = error, False
            self._changed.notify_all()
        self._new_records.set()

    def _open(self, after: int) -> BaseHTTPResponse:
        part = "" if self._choice.is_all else f"&range={quote(str(self._choice), safe='')}"
        return self._client.open(f"/v1/log?after={after}{part}")

    def _read_or_reconnect(self) -> Record | None:
        while True:
            try:
                return self._read()
            except ReadTimeoutError:
                # an idle trainer, or a peer that is gone without closing: a new request distinguishes the two
                self._response.close()
                response = self._open(self._received)
                with self._changed:
                    self._response = response
                    if not self._is_open:
                        return None

    def _read(self) -> Record | None:
        """Read one version, with the shard records that follow it; None when the response ends."""
        record = self._read_frame()
        if record is None or not record.shard_entries:
            return record
        needed = self._choice.needed(record)
        shards = [shard for _ in needed if (shard := self._read_frame()) is not None]
        return record.with_shards(shards, needed) if len(shards) == len(needed) else None

    def _read_frame(self) -> Record | None:
        header_bytes = self._response.read(HEADER.size)
        if len(header_bytes) < HEADER.size:
            return None
        header = parse_header(header_bytes)
        if header.length > MAX_RECORD_BYTES:
            raise CorruptRecordError(f"a record claims {header.length:,} bytes")
        payload = self._response.read(header.length)
        return Record.verify_payload(header, payload) if len(payload) == header.length else None


# what bases may take on disk
DISK_BYTES = 20 << 30

logger = logging.getLogger(__name__)


class HttpLog:
    """A LogSource that reads the routes /v1/bases and /v1/log of a server."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        cache_dir: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        timeout_seconds: float = TIMEOUT_SECONDS,
        hash_range: HashRange = ALL_KEYS,
    ) -> None:
        """Keep bases of at most `disk_bytes` in `cache_dir`, by default in a temporary folder that `close` removes.

        Of their files with rows, and of the shard records of versions, those arrive that have keys of `hash_range`.
        """
        self._client = HttpClient(url, token=token, timeout_seconds=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._own_folder = None if cache_dir is not None else Path(tempfile.mkdtemp(prefix="springtide-"))
        folder = cache_dir or self._own_folder
        assert folder is not None
        # also removed when this object is collected, and when the process ends
        self._remove_own_folder = weakref.finalize(self, _remove, self._own_folder, os.getpid())
        self._bases = BaseCache(self._client, folder, max_bytes=disk_bytes, hash_range=hash_range)
        self._choice = FOR_ASKING if hash_range.is_empty else ShardChoice(hash_range)
        self._new_records = threading.Event()
        self._downloaded: Path | None = None
        self._download: threading.Thread | None = None
        self._lock = threading.Lock()  # `close` must not meet a thread that is not started yet
        self._is_closed = False

    def newest_base(self) -> Path | None:
        """Return the server's newest base, downloaded if it is not cached; None while the server has none."""
        self._downloaded = self._bases.newest()
        return self._downloaded

    def bases_before(self, than: Path) -> list[Path]:
        """Return no base: downloads are verified, and the server chooses which base is offered."""
        return []

    def local_base(self) -> Path | None:
        """Return the newest base downloaded so far, and download a newer one in a thread: that may take minutes."""
        with self._lock:
            if not self._is_closed and (self._download is None or not self._download.is_alive()):
                self._download = threading.Thread(target=self._download_newest, name="springtide-base", daemon=True)
                self._download.start()
        return self._downloaded

    def _download_newest(self) -> None:
        try:
            self.newest_base()
        except (SpringtideError, OSError, ValueError) as error:
            if not self._client.is_closed:
                logger.warning("a newer base could not be downloaded: %s", error)

    def follow(self, after: Head | None) -> RecordStream:
        """Return a stream of the records behind a version, once the server's newest record is among them."""
        if after is None:
            raise LogError("over HTTP a log is followed from a base")
        newest = self._client.get_json("/v1/versions/latest")
        stream = RecordStream(self._client, after.number, self._new_records, self._choice)
        stream.wait_for(int(newest["version"]), self._timeout_seconds)
        return stream

    def wait(self, seconds: float) -> None:
        """Return once a record has arrived, at the latest after `seconds`."""
        self._new_records.wait(seconds)
        self._new_records.clear()

    def stop(self) -> None:
        """Wake the thread in `wait`, and end every request under way."""
        self._new_records.set()
        self._client.close()

    def close(self) -> None:
        """Stop, and remove the temporary folder; mapped bases stay readable."""
        self.stop()
        with self._lock:
            self._is_closed = True
        if self._download is not None:
            self._download.join(timeout=CLOSE_SECONDS)
        self._remove_own_folder()


def _remove(folder: Path | None, pid: int) -> None:
    if folder is not None and os.getpid() == pid:  # a forked child does not own the folder
        shutil.rmtree(folder, ignore_errors=True)
