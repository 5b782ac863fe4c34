"""Replaces damaged exported models in bases: they hold no row, and the trainer, having the net, exports it again."""

import logging
import zlib
from contextlib import suppress

from msgspec.structs import replace

from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.log.base import MANIFEST, MODEL, Base, FileChecksum
from springtide_client.log.directory import LogDirectory
from springtide_client.system.files import write_atomically

logger = logging.getLogger(__name__)


def write_exported_model(newest: Base, directory: LogDirectory, program: bytes) -> None:
    """Write `program` into each base whose exported model is that of `newest`, and damaged. Bases link one file.

    The oldest first: after a crash on the way the newest is still found damaged.
    """
    known = newest.manifest.files.get(MODEL)
    checksum = FileChecksum(len(program), zlib.crc32(program))
    for path in directory.bases():
        with suppress(LogError, FileNotFoundError):  # a base that cannot be opened, or is deleted meanwhile
            base = Base.open(path)
            if base.manifest.files.get(MODEL) != known or base.is_sound(MODEL):
                continue
            manifest = replace(base.manifest, files={**base.manifest.files, MODEL: checksum})
            write_atomically(path / MODEL, program)
            write_atomically(path / MANIFEST, encode_checksummed_json(manifest))
            logger.warning("replaced the damaged exported model of a base", extra={"base": path.name})
