"""Export a version as one file: the model snapshot, or its rows for other tools. The file is complete or absent."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.version_log.export.arrow_parquet import write_arrow, write_parquet
from springtide.app.version_log.export.torch_tensors import write_torch
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.row_image import RowImage
from springtide_client.errors import LogError
from springtide_client.system.files import fsync_folder

FORMATS = {"safetensors": ".safetensors", "arrow": ".arrow", "parquet": ".parquet", "torch": ".pt"}


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Options of an export; UserError if the format cannot hold it."""

    format: str
    version: int
    feature: int | None = None  # its number; None: all features
    with_rows: bool = True

    def __post_init__(self) -> None:
        if self.format == "safetensors" and self.feature is not None:
            raise UserError("--feature: the safetensors snapshot is a whole model: use arrow, parquet or torch")
        if self.format in ("arrow", "parquet") and not self.with_rows:
            raise UserError(f"--rows none: {self.format} holds only rows: use safetensors or torch")
        if self.feature is not None and not self.with_rows:
            raise UserError("--feature with --rows none leaves nothing to write")


def format_of(path: Path) -> str:
    """Return the format that the file's suffix names; UserError if it names none."""
    for name, suffix in FORMATS.items():
        if path.suffix == suffix:
            return name
    raise UserError(
        f"{path}: choose a format with --format {'|'.join(FORMATS)}, or end the name in {', '.join(FORMATS.values())}"
    )


def export(index: LogIndex, config: ExportConfig, path: Path, *, force: bool) -> int:
    """Write the file and return its number of rows; an existing file is replaced only with `force`."""
    check_target(path, force=force)
    if config.format == "safetensors":
        return write_whole_file(path, lambda draft: _write_snapshot(index, config, draft), force=force)
    image = RowImage(index, config.version)
    write = {"arrow": write_arrow, "parquet": write_parquet}.get(config.format)
    if write is not None:
        return write_whole_file(path, lambda draft: write(image, draft, config.feature), force=force)
    return write_whole_file(
        path, lambda draft: write_torch(image, draft, config.feature, with_rows=config.with_rows), force=force
    )


def check_target(path: Path, *, force: bool) -> None:
    """Raise UserError if no file can be written at this path."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the name of a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}: create it first")
    if path.exists() and not force:
        raise UserError(f"{path} exists: choose another name, or replace it with --force")


def write_whole_file(path: Path, write: Callable[[Path], int], *, force: bool) -> int:
    """1. Write a draft. 2. fsync it. 3. Move it into place. LogError if the disk refuses; the draft is then deleted."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        result = write(draft)
        descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _move(draft, path, force=force)
        fsync_folder(path.parent)
        return result
    except OSError as error:
        raise LogError(f"{path} cannot be written: {_reason(error)}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _move(draft: Path, path: Path, *, force: bool) -> None:
    if force:
        draft.replace(path)
        return
    try:
        os.link(draft, path)  # unlike a rename, this never replaces a file created meanwhile
    except FileExistsError:
        check_target(path, force=False)
    except OSError:  # a file system without hard links
        check_target(path, force=False)
        draft.rename(path)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "its disk is full: make room, or choose another place"
    reason = str(error) if error.errno is None else os.strerror(error.errno).lower()
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{reason}: choose another place, or change the folder's permissions"
    return reason


def _write_snapshot(index: LogIndex, config: ExportConfig, draft: Path) -> int:
    from springtide.app.version_log.export.snapshot_file import SnapshotFile
    from springtide.app.version_log.read.version_range import RANGE_BYTES, VersionRange
    from springtide_client.follow.views import MemoryLimit
    from springtide_client.model.view import View

    base = index.base_before(config.version)
    view = View.open(base.path)
    for record in VersionRange(index, base.tip.number, config.version).records():
        memory_bytes = view.parameters.num_bytes * 2 + RANGE_BYTES
        limit = MemoryLimit(memory_bytes=memory_bytes, folder=draft.parent)
        view = limit.apply(view.apply(record).merged())
    snapshot = SnapshotFile.of(view, index.directory, with_rows=config.with_rows)
    snapshot.write(draft)
    return snapshot.num_rows
