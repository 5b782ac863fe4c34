"""Pins: names that people give versions, each of which stays restorable until its name is removed."""

import os
import re
from pathlib import Path

import msgspec

from springtide_client.format.checksummed_json import decode_checksummed_json
from springtide_client.format.records import Tip

FOLDER = "pins"
SUFFIX = ".json"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
RESERVED = ("latest", "oldest", "event")


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned version. Its file `pins/NAME.json` appears complete, never changes, and is deleted as a whole."""

    name: str
    version: int
    checksum: int  # of the version
    created_ms: int  # when it was pinned

    @property
    def tip(self) -> Tip:
        return Tip(self.version, self.checksum)


def is_pin_name(name: str) -> bool:
    """Return True if a pin may have this name, which no other way of naming a version uses."""
    return NAME.fullmatch(name) is not None and name not in RESERVED


def pin_path(log_path: Path, name: str) -> Path:
    """Return the file of a pin."""
    return Path(log_path) / FOLDER / f"{name}{SUFFIX}"


def read_pins(log_path: Path) -> list[Pin]:
    """Return the pins of a log, those of the oldest versions first; LogError if one of them cannot be read."""
    pins = []
    for name in pin_names(log_path):
        path = pin_path(log_path, name)
        try:
            pins.append(decode_checksummed_json(path.read_bytes(), Pin, str(path)))
        except FileNotFoundError:  # unpinned meanwhile
            continue
    return sorted(pins, key=lambda pin: (pin.version, pin.name))


def pin_names(log_path: Path) -> list[str]:
    """Return the names of the pins, sorted."""
    try:
        names = os.listdir(Path(log_path) / FOLDER)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def read_pin(log_path: Path, name: str) -> Pin | None:
    """Return the pin of this name; None if there is none. LogError if it cannot be read."""
    path = pin_path(log_path, name)
    try:
        return decode_checksummed_json(path.read_bytes(), Pin, str(path)) if is_pin_name(name) else None
    except FileNotFoundError:
        return None
