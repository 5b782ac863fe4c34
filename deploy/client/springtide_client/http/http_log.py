"""A log over HTTP: bases are downloaded into a folder, records arrive on one open response as they are written."""

import logging
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

from springtide_client.errors import LogError, SpringtideError
from springtide_client.format.records import Tip
from springtide_client.http.base_cache import BaseCache
from springtide_client.http.http_client import TIMEOUT_SECONDS, HttpClient
from springtide_client.http.record_stream import CLOSE_SECONDS, RecordStream
from springtide_client.log.shard_choice import FOR_ASKING, ShardChoice
from springtide_client.rows.hash_range import ALL_KEYS, HashRange

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

    def follow(self, after: Tip | None) -> RecordStream:
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
