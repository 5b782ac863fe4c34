"""Settings named on the command line, `--set train.batch_size=64`: the keys of a TOML file, one at a time."""

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from springtide.app.errors import UserError

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
