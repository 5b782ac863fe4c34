"""Versions of the log by the names that requests give them: number, epoch.count, pin, time."""

import zlib
from pathlib import Path
from typing import Any

from springtide.app.errors import UserError
from springtide.app.serving.http.errors import ApiError, gone, invalid, not_ready
from springtide.app.serving.model.version_index import VersionEntry
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_names import MAX_LENGTH, parse_instant, parse_version
from springtide.app.version_log.retention.pins import Pin, is_pin_name, read_pins
from springtide_client.errors import LogError
from springtide_client.follow.listeners import AppliedVersion
from springtide_client.log.directory import LogDirectory

MAX_NAME = 80


def resolve_version(log_path: Path, name: str) -> int:
    """Return the number of a version; a number needs no log. ApiError 422 for no name, 410 for none in the log."""
    if name.isascii() and name.isdecimal() and len(name) < 20:
        return int(name)
    try:
        if len(name) > MAX_NAME or (parse_instant(name) is None and not is_pin_name(name)):
            parse_version(name if len(name) > MAX_LENGTH else name[:MAX_NAME])
    except UserError as error:
        raise invalid(str(error), "/v1/versions lists versions and pins") from None
    try:
        return LogIndex(LogDirectory(log_path)).resolve(name)
    except UserError as error:
        raise ApiError(410, "gone", str(error), "see /v1/versions") from None
    except LogError as error:
        raise not_ready(str(error)) from None


def version_of_log(log_path: Path, number: int) -> VersionEntry:
    """Return a version that the log still has, by its record or its base; ApiError 410 if it has not."""
    try:
        index = LogIndex(LogDirectory(log_path))
        if number not in index.numbers:
            raise gone(number, index.numbers[0])
        found = index.find(number)
        parent = 0 if found is None else found.header.parent
        return VersionEntry.of(AppliedVersion(number, parent, index.tip(number).checksum, index.meta(number)))
    except (UserError, LogError, FileNotFoundError):
        raise gone(number, None) from None


def pins_of(log_path: Path) -> list[Pin]:
    """Return the pins; ApiError 503 if one cannot be read."""
    try:
        return read_pins(log_path)
    except LogError as error:
        raise not_ready(str(error)) from None


def pin_documents(pins: list[Pin]) -> list[dict[str, Any]]:
    """Return the pins as JSON has them."""
    return [{"name": pin.name, "version": pin.version, "created_ms": pin.created_ms} for pin in pins]


def pins_tag(pins: list[Pin]) -> str:
    """Return what an ETag needs to change with the pins; empty without pins."""
    return f"-{zlib.crc32(repr(pins).encode()):x}" if pins else ""
