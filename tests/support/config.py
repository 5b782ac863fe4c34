"""Write springtide.toml files for tests: a small click schema and the changes that a test needs.

A layer is a mapping or a TOML text; later layers win, key by key.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from springtide.app.config.load import Config, load_config

Section = Mapping[str, Any]

CLICKS: Section = {
    "name": "test",
    "source": {"topic": "clicks"},
    "schema": {
        "label": "click",
        "timestamp": "ts",
        "categorical": ["user_id", "item_id"],
        "multi_value": ["genres"],
        "sequence": ["last_items"],
        "dense": ["age"],
        "share": {"last_items": "item_id"},
    },
}
NET_ALONE = "[model]\nwide = false\n"


def small(folder: Path) -> Section:
    """Return the settings of a small table, whose spill and log lie in a folder."""
    return {
        "table": {"dim": 4, "device_bytes": "8MiB", "disk_path": str(folder / "spill")},
        "log": {"path": str(folder / "log")},
    }


def config_in(folder: Path, *layers: Section | str) -> Config:
    """Write the layers over those of `small` into a folder, which need not exist, and load them."""
    folder.mkdir(exist_ok=True)
    return load_config(write_config(folder / "springtide.toml", small(folder), *layers))


def write_config(path: Path, *layers: Section | str) -> Path:
    """Write the merged layers as TOML."""
    document: dict[str, Any] = {}
    for layer in layers:
        document = merge(document, tomllib.loads(layer) if isinstance(layer, str) else layer)
    path.write_text(to_toml(document))
    return path


def edit_config(path: Path, *changes: Section | str) -> Path:
    """Change some keys of an existing file; a value of None removes its key."""
    return write_config(path, path.read_text(), *changes)


def merge(document: Section, changes: Section) -> dict[str, Any]:
    """Return `document` with `changes` merged in, table by table."""
    merged = dict(document)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = merge(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


def to_toml(document: Section) -> str:
    """Return the document as TOML: keys first, then one `[section]` per table of the top level."""
    lines = [f"{key} = {to_value(value)}" for key, value in document.items() if not isinstance(value, Mapping)]
    for name, section in document.items():
        if not isinstance(section, Mapping):
            continue
        lines.append(f"[{name}]")
        lines += [f"{to_value(key) if '.' in key else key} = {to_value(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def to_value(value: Any) -> str:
    """Return one value as TOML, tables inline."""
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{to_value(key) if '.' in key else key} = {to_value(inner)}" for key, inner in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_value, value)) + "]"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return repr(value)
    return json.dumps(value if isinstance(value, str | bool) else str(value))
