"""A base of a version that changed nothing since the base before: the same files under a newer number."""

import os
import shutil
from pathlib import Path

import msgspec

from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import EPOCH_SHIFT, Tip, VersionMeta
from springtide_client.log.base import MANIFEST, Base
from springtide_client.log.listing import base_name
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import fsync_folder


def link_base(log_path: Path, base: Base, tip: Tip, meta: VersionMeta) -> Path:
    """Write the base of version `tip`, which holds what `base` holds, and return its folder.

    The files are links, so it takes no space; where the file system has none, they are copied.
    """
    path = Path(log_path) / base_name(tip.number)
    draft = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        for name in base.manifest.files:
            _link(base.path / name, draft / name)
        manifest = msgspec.structs.replace(
            base.manifest,
            number=tip.number,
            checksum=tip.checksum,
            epoch=tip.number >> EPOCH_SHIFT,
            created_ms=wall_ms(),
            meta=meta,
            repeats=base.manifest.repeats or base.manifest.number,
        )
        with (draft / MANIFEST).open("wb") as file:
            file.write(encode_checksummed_json(manifest))
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(draft)
        draft.rename(path)
        fsync_folder(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())
