"""Configuration documents: TOML text, keys set one at a time by `--set`, the answer to keys that do not exist."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from springtide.app.errors import UserError
from springtide_client.system.settings import Settings, keys, unknown_key

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
    return isinstance(value, Mapping) and name in ("", "features", "labels", "policies")


Document = dict[str, Any]


def parse_assignment(text: str) -> Document:
    """Return `section.key=value` as the document that a TOML file with this one line gives.

    A value that is not TOML is a string: `model.name=deepfm` needs no quotes. UserError without a key or a value.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or not value:
        raise UserError(f"--set {text}: write SECTION.KEY=VALUE, such as train.batch_size=64")
    try:
        document = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        document = {}
    if "\n" in text or len(document) != 1:
        raise UserError(f"--set {text}: {key!r} is no key: write SECTION.KEY=VALUE, such as train.batch_size=64")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return _with_value(document, parsed)


def merge_document(document: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> Document:
    """Return the document with the changes in it; tables are merged, other values replaced."""
    merged = dict(document)
    for change in changes:
        for key, value in change.items():
            before = merged.get(key)
            is_table = isinstance(value, Mapping)
            if is_table and before is not None and not isinstance(before, Mapping):
                raise UserError(f"{key} = {before!r} is not a table: it has no {', '.join(value)}")
            merged[key] = merge_document(before or {}, [value]) if is_table else value
    return merged


def _with_value(document: Mapping[str, Any], value: Any) -> Document:
    """Return the document with `value` for the 0 at its one leaf."""
    ((key, inner),) = document.items()
    return {key: _with_value(inner, value) if isinstance(inner, Mapping) else value}


NEW_NAMES = {
    "access_log_share": "access_log_sample_rate",
    "capture": "cuda_graphs",
    "client_seconds": "request_timeout_seconds",
    "halve_samples": "decay_every_samples",
    "poll_seconds": "poll_interval_seconds",
    "predict_batch_rows": "predict_max_batch_rows",
    "predict_wait_ms": "predict_batch_timeout_ms",
}


def check_keys(where: str, table: Mapping[str, Any], settings_class: type[Settings]) -> None:
    """Raise UserError for the first key of a table, or of a table inside it, that the settings do not have."""
    known = {name: key for name, key in keys(settings_class).items() if not key.is_internal}
    for name, value in table.items():
        if name not in known:
            for outer, key in known.items():
                if key.table is not None and name in keys(key.table):
                    raise UserError(f"{where} has an unknown key {name!r}: write {outer} = {{ {name} = ... }}")
            raise unknown_key_error(where, name, known)
        if (inner := known[name].table) is not None and isinstance(value, Mapping):
            check_keys(f"{where} {name}", value, inner)


def has_key(settings_class: type[Settings], name: str) -> bool:
    """Return True if a file may have this key in a table of the settings."""
    key = keys(settings_class).get(name)
    return key is not None and not key.is_internal


def unknown_key_error(where: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown key of the table that `where` names."""
    known = list(known)
    if NEW_NAMES.get(name) in known:
        return UserError(f"{where} has an unknown key {name!r}: did you mean {NEW_NAMES[name]}?")
    return UserError(f"{where} {unknown_key(name, known)}")
