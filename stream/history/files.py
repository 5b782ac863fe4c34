"""Which files a history has: found by a pattern, in their order, each with a fingerprint of its content."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from springtide.stream.errors import HistoryError
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.input_file import InputFile

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FINGERPRINT_BYTES = 64 << 10  # at the beginning, and at the end: there a Parquet file has its footer
SCHEME = re.compile(r"[a-z][a-z0-9+]*://", re.IGNORECASE)


@dataclass(frozen=True)
class HistoryFile:
    """A file; `name` is its path below the folder in which the pattern begins to match."""

    name: str
    path: str
    size: int
    filesystem: "FileSystem"

    def open(self) -> InputFile:
        """Return the file's rows. Raises InputFileError for a type that is not known."""
        from pyarrow import fs

        is_local = isinstance(self.filesystem, fs.LocalFileSystem)
        return InputFile(Path(self.path), filesystem=None if is_local else self.filesystem)

    def fingerprint(self) -> str:
        """Return what tells the file from a changed one: its size, and a checksum of its beginning and its end.

        Independent of the time of modification, so that a copied file is the same file. A change in the middle of a
        large file of text that keeps its size is not noticed.
        """
        try:
            with self.filesystem.open_input_file(self.path) as file:
                size = file.size()
                checksum = zlib.crc32(file.read(FINGERPRINT_BYTES))
                file.seek(max(0, size - FINGERPRINT_BYTES))
                return f"{size}-{zlib.crc32(file.read(FINGERPRINT_BYTES), checksum):08x}"
        except OSError as error:
            raise HistoryError(f"[history] {self.name} cannot be read: {error}") from None


def find_files(config: HistoryConfig) -> list[HistoryFile]:
    """Return the files that `path` names, by name. HistoryError if there is none, or they cannot be listed.

    Names that begin with a dot or an underscore, as of `_SUCCESS`, are left out.
    """
    from pyarrow import lib

    assert config.path is not None
    try:
        filesystem, pattern = open_filesystem(config.path)
        files = sorted(_matching(filesystem, pattern), key=lambda file: file.name)
    except (OSError, lib.ArrowException) as error:
        raise HistoryError(f"[history] path {config.path} cannot be listed: {error}") from None
    if not files:
        raise HistoryError(f"[history] path {config.path} names no file: correct it")
    return files


def open_filesystem(path: str) -> "tuple[FileSystem, str]":
    """Return the file system that a path or a URI is in, and the path in it."""
    from pyarrow import fs

    if SCHEME.match(path):
        filesystem, inner = fs.FileSystem.from_uri(path)
        return filesystem, cast(str, inner)
    return fs.LocalFileSystem(), Path(path).absolute().as_posix()


def _matching(filesystem: "FileSystem", pattern: str) -> Iterator[HistoryFile]:
    from pyarrow import fs

    parts = PurePosixPath(pattern).parts
    first = next((n for n, part in enumerate(parts) if set(part) & set("*[")), len(parts))
    root, wanted = PurePosixPath(*parts[:first]), parts[first:]
    if not wanted:
        info = filesystem.get_file_info(root.as_posix())
        if info.type == fs.FileType.File:
            yield HistoryFile(root.name, info.path, info.size, filesystem)
            return
        wanted = ("**",)
    for info in filesystem.get_file_info(fs.FileSelector(root.as_posix(), recursive=True, allow_not_found=True)):
        if info.type != fs.FileType.File:
            continue
        names = PurePosixPath(info.path).relative_to(root).parts
        if not any(name.startswith((".", "_")) for name in names) and _matches(names, wanted):
            yield HistoryFile("/".join(names), info.path, info.size, filesystem)


def _matches(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Return True if the parts of a path match those of a pattern, where `**` stands for any number of parts."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        # behind the last `**` there is a file's name to match, whatever it is
        rest = pattern[1:] or ("*",)
        return any(_matches(names[n:], rest) for n in range(len(names)))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])
