"""Writes settings as TOML: what `tomllib` reads back is equal."""

import math
import re
from collections.abc import Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def format_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML text: its plain values first, then a section for each table."""
    return "\n\n".join(part for part in _sections(document, "") if part) + "\n"


def format_toml_value(value: Any) -> str:
    """Return one value as TOML; a table inside becomes an inline table. TypeError for what TOML cannot hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return format_toml_string(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{format_toml_key(k)} = {format_toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_toml_value, value)) + "]"
    if hasattr(value, "isoformat"):  # a date or a time
        return str(value.isoformat())
    raise TypeError(f"TOML has no {type(value).__name__}")


def format_toml_string(text: str) -> str:
    """Return a string in quotes; control characters are escaped."""
    return '"' + "".join(ESCAPES.get(char) or (char if char.isprintable() else _escaped(char)) for char in text) + '"'


def format_toml_key(key: str) -> str:
    """Return a key, in quotes where TOML needs them."""
    return key if BARE_KEY.fullmatch(key) else format_toml_string(key)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}"


def _sections(table: Mapping[str, Any], name: str) -> list[str]:
    values = [
        f"{format_toml_key(key)} = {format_toml_value(value)}"
        for key, value in table.items()
        if not _is_section(value, name)
    ]
    header = [f"[{name}]"] if name and (values or not table) else []
    sections = ["\n".join([*header, *values])]
    for key, value in table.items():
        if _is_section(value, name):
            sections += _sections(value, f"{name}.{format_toml_key(key)}" if name else format_toml_key(key))
    return sections


def _is_section(value: Any, name: str) -> bool:
    """Top tables and those of `[features]` are sections; tables further inside are written in one line."""
    return isinstance(value, Mapping) and name in ("", "features", "labels")
