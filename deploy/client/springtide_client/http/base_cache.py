"""Bases fetched over HTTP into a folder: resumed where a download was cut, checked, complete once they have a manifest.

Several processes may share the folder: one downloads, the others wait for it.
"""

import contextlib
import hashlib
import http.client
import re
import shutil
import zlib
from pathlib import Path

from springtide_client.errors import GapError, LogError
from springtide_client.format.checksummed_json import decode_checksummed_json
from springtide_client.http.http_client import HttpClient, NotReadyError
from springtide_client.log.base import MANIFEST, SERVING_FILES, BaseManifest, FileChecksum
from springtide_client.log.listing import base_name
from springtide_client.system.file_lock import file_lock
from springtide_client.system.files import write_atomically

CHUNK_BYTES = 1 << 20
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# a base may be retired while it is fetched: then the next newest is taken
NUM_TRIES = 3
# another process that fetches the same base is looked at so often
LOCK_SECONDS = 0.05


class BaseCache:
    """The bases of one server, each in `<folder>/<hash of its manifest>/base-<number>`: the files that answer alone."""

    def __init__(self, server: HttpClient, folder: Path, *, max_bytes: int) -> None:
        """`max_bytes`: of the folder, while an older base lies beside the one that is fetched, too."""
        self._server = server
        self._folder = folder
        self._max_bytes = max_bytes

    def newest(self) -> Path | None:
        """The server's newest base, fetched unless it is here; None while the server has none."""
        for tries_left in reversed(range(NUM_TRIES)):
            try:
                number = int(self._server.get_json("/v1/bases/latest")["number"])
                return self._fetch(number, self._server.get(f"/v1/bases/{number}/files/{MANIFEST}"))
            except NotReadyError:
                return None
            except GapError:
                if not tries_left:
                    raise
        raise AssertionError

    def _fetch(self, number: int, body: bytes) -> Path:
        manifest = decode_checksummed_json(body, BaseManifest, f"the manifest of base {number}")
        # a log made anew may give the same number to another base: the name is what the manifest says, all of it
        home = self._folder / hashlib.sha256(body).hexdigest()[:16]
        path = home / base_name(number)
        home.mkdir(parents=True, exist_ok=True)
        with file_lock(home / "lock", lambda: self._server.wait(LOCK_SECONDS)):
            if not (path / MANIFEST).exists():
                path.mkdir(exist_ok=True)
                self._fetch_files(manifest, path)
                write_atomically(path / MANIFEST, body, durable=False)
                self._remove_others(home)
        return path

    def _fetch_files(self, manifest: BaseManifest, path: Path) -> None:
        for name in manifest.files:
            if not FILE_NAME.fullmatch(name):
                raise LogError(f"the base names a file {name!r}: refused")
        wanted = {name: expected for name, expected in manifest.files.items() if name in SERVING_FILES}
        needed = sum(expected.bytes for expected in wanted.values()) - _bytes_in(path)
        if (total := _bytes_in(self._folder) + needed) > self._max_bytes:
            raise LogError(
                f"with base {manifest.number} {self._folder} would hold {total:,} bytes, {self._max_bytes:,} are "
                "allowed: give more cache_disk_bytes"
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
            raise LogError(f"{path.name} broke off at {size:,} of {expected.bytes:,} bytes: it is resumed")
        if (crc, size) != (expected.crc32, expected.bytes):
            part.unlink()  # what was there to resume may have been bad: the next try begins anew
            raise LogError(f"{path.name} arrived damaged: it is fetched again")
        part.rename(path)

    def _receive(self, route: str, part: Path, expected: FileChecksum) -> tuple[int, int]:
        """Append what is missing; returns the CRC and the size of the whole."""
        with part.open("a+b") as file:
            file.seek(0)
            crc = size = 0
            while chunk := file.read(CHUNK_BYTES):
                crc, size = zlib.crc32(chunk, crc), size + len(chunk)
            if size >= expected.bytes:
                return crc, size
            with self._server.open(route, {"Range": f"bytes={size}-"} if size else None) as answer:
                if size and answer.response.status != 206:
                    file.truncate(0)
                    crc = size = 0
                while size < expected.bytes:
                    try:
                        chunk = answer.response.read(CHUNK_BYTES)
                    except (OSError, http.client.HTTPException):
                        break  # what arrived stands; its size tells that it is not all
                    if not chunk:
                        break
                    file.write(chunk)
                    crc, size = zlib.crc32(chunk, crc), size + len(chunk)
        return crc, size

    def _remove_others(self, newest: Path) -> None:
        """Drop older bases, so that the folder holds one; who has one mapped keeps it until letting go."""
        for home in self._folder.iterdir():
            if home != newest and (home / "lock").exists():
                shutil.rmtree(home, ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    """Of the files below it; those that vanish meanwhile count nothing."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += 0 if file.is_dir() else file.stat().st_size
    return total
