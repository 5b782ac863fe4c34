"""Bases downloaded into a folder: resumed after an interruption, verified, complete once they have their manifest.

Several processes may share the folder: one downloads, the others wait for it.
"""

import contextlib
import hashlib
import re
import shutil
import zlib
from pathlib import Path

from urllib3.exceptions import HTTPError

from springtide_client.errors import GapError, LogError
from springtide_client.format.checksums import decode_checksummed_json
from springtide_client.http.http_client import HttpClient, NotReadyError
from springtide_client.log.base import MANIFEST, BaseManifest, FileChecksum
from springtide_client.log.listing import base_name
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.system.files import file_lock, write_atomically

CHUNK_BYTES = 1 << 20
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# the server may delete a base while it is downloaded: then the newest is requested again
MAX_ATTEMPTS = 3
# how often to look whether another process has finished downloading the same base
LOCK_POLL_SECONDS = 0.05


class BaseCache:
    """The newest base of one server, in `<folder>/<hash of its manifest>/base-<number>`, without files for training."""

    def __init__(self, client: HttpClient, folder: Path, *, max_bytes: int, hash_range: HashRange = ALL_KEYS) -> None:
        """`max_bytes` limits the whole folder, also while the previous base lies beside a download.

        Of the files with rows, those are left out that have no keys of `hash_range`.
        """
        self._hash_range = hash_range
        self._client = client
        self._folder = folder
        self._max_bytes = max_bytes

    def newest(self) -> Path | None:
        """Return the server's newest base, downloaded if it is not here; None while the server has none.

        LogError when the server, the download or the disk fails; a later call resumes.
        """
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            try:
                number = int(self._client.get_json("/v1/bases/latest")["number"])
                return self._fetch(number, self._client.get(f"/v1/bases/{number}/files/{MANIFEST}"))
            except NotReadyError:
                return None
            except GapError:
                if not attempts_left:
                    raise
        raise AssertionError

    def _fetch(self, number: int, manifest_content: bytes) -> Path:
        manifest = decode_checksummed_json(manifest_content, BaseManifest, f"the manifest of base {number}")
        # a re-created log may give the same number to another base, so the folder is named for the whole manifest
        # a base without some of its rows is another one
        own = self._hash_range
        kind = "" if own.is_all else "-no-rows" if own.is_empty else f"-{own.number}-of-{own.count}"
        identity = hashlib.sha256(manifest_content).hexdigest()[:16]
        home = self._folder / (identity + kind)
        path = home / base_name(number)
        home.mkdir(parents=True, exist_ok=True)
        with file_lock(home / "lock", lambda: self._client.wait(LOCK_POLL_SECONDS)):
            if not (path / MANIFEST).exists():
                path.mkdir(exist_ok=True)
                self._fetch_files(manifest, path)
                write_atomically(path / MANIFEST, manifest_content, durable=False)
                self._remove_others(identity)
        return path

    def _fetch_files(self, manifest: BaseManifest, path: Path) -> None:
        for name in manifest.files:
            if not FILE_NAME.fullmatch(name):
                raise LogError(f"the base's manifest names a file {name!r}: refused")
        needed_files = manifest.serving_files_of(self._hash_range)
        wanted = {name: expected for name, expected in manifest.files.items() if name in needed_files}
        needed = sum(expected.bytes for expected in wanted.values()) - _num_bytes(path)
        if (total := _num_bytes(self._folder) + needed) > self._max_bytes:
            raise LogError(
                f"with base {manifest.number} {self._folder} would hold {total:,} bytes, {self._max_bytes:,} are "
                "allowed: raise cache_disk_bytes"
            )
        if (free := shutil.disk_usage(path).free) < needed:
            raise LogError(f"{self._folder} has {free:,} bytes free, the base needs {needed:,}: give another cache_dir")
        for name, expected in wanted.items():
            if not (path / name).exists():
                self._fetch_file(f"/v1/bases/{manifest.number}/files/{name}", path / name, expected)

    def _fetch_file(self, route: str, path: Path, expected: FileChecksum) -> None:
        part = path.with_name(path.name + ".part")
        crc, size = self._receive(route, part, expected)
        if size < expected.bytes:
            raise LogError(f"the download of {path.name} broke off at {size:,} of {expected.bytes:,} bytes: resuming")
        if (crc, size) != (expected.crc32, expected.bytes):
            part.unlink()  # the bytes of an earlier attempt may be the corrupt ones
            raise LogError(f"the download of {path.name} is corrupt: downloading it again")
        part.rename(path)

    def _receive(self, route: str, part: Path, expected: FileChecksum) -> tuple[int, int]:
        """Append what is missing to `part`; return the checksum and the size of the whole."""
        with part.open("a+b") as file:
            file.seek(0)
            crc = size = 0
            while chunk := file.read(CHUNK_BYTES):
                crc, size = zlib.crc32(chunk, crc), size + len(chunk)
            if size >= expected.bytes:
                return crc, size
            with self._client.open(route, {"Range": f"bytes={size}-"} if size else None) as response:
                if size and response.status != 206:
                    file.truncate(0)
                    crc = size = 0
                while size < expected.bytes:
                    try:
                        chunk = response.read(CHUNK_BYTES)
                    except (HTTPError, OSError):
                        break  # keep what has arrived; the caller sees from its size that more is missing
                    if not chunk:
                        break
                    file.write(chunk)
                    crc, size = zlib.crc32(chunk, crc), size + len(chunk)
        return crc, size

    def _remove_others(self, newest: str) -> None:
        """Delete older bases. A process that has one mapped can still read it.

        Other parts of the newest base stay: other processes keep them here.
        """
        for home in self._folder.iterdir():
            if not home.name.startswith(newest) and (home / "lock").exists():
                shutil.rmtree(home, ignore_errors=True)


def _num_bytes(folder: Path) -> int:
    """Return the total size of the files below a folder, where files may vanish meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += 0 if file.is_dir() else file.stat().st_size
    return total
