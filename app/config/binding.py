"""Binds a TOML table to a frozen dataclass: names, types and sizes checked. Knows no section by name."""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from springtide_client.system import sizes

from app.errors import UserError

Bound = TypeVar("Bound")


def parse_size(value: object) -> int:
    """Bytes from an integer or a text such as "2GiB" or "64 MB"; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'must be a size: whole bytes or a text such as "2GiB", not {format_toml_value(value)}')
    return sizes.parse_size(value)


def format_toml_value(value: object) -> str:
    """The value as TOML would have it, near enough for an error."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def unknown_key(where: str, key: str, known: Iterable[str]) -> UserError:
    """The error for a key that nobody reads, naming the nearest one that somebody does."""
    known = sorted(known)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    mend = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return UserError(f"{where} has an unknown key {key!r}: {mend}")


def require_table(where: str, value: object) -> dict[str, Any]:
    """The value, when it is a TOML table."""
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a table, not {format_toml_value(value)}")
    return value


def bind(
    config_class: type[Bound],
    where: str,
    table: Mapping[str, object],
    *,
    hidden: Mapping[str, object] | None = None,
    **given: object,
) -> Bound:
    """An instance of the dataclass with the table's values.

    `given` are defaults that the table may override, `hidden` are values that it may not name.

    A field named `*_bytes` takes sizes. Raises UserError with `where`, the key and the mend.
    """
    hints = typing.get_type_hints(config_class)
    hidden = hidden or {}
    known = {field.name: field for field in fields(config_class) if field.init}  # type: ignore[arg-type]
    nameable = [name for name in known if name not in hidden]
    values = {**given, **hidden}
    for key, value in table.items():
        if key not in nameable:
            raise unknown_key(where, key, nameable)
        try:
            values[key] = parse_size(value) if key.endswith("_bytes") else convert(hints[key], value)
        except ValueError as error:
            raise UserError(f"{where} {key} {error}") from None
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{where} needs {name} = ...")
    try:
        return config_class(**values)
    except ValueError as error:
        text = str(error)
        raise UserError(text if text.startswith("[") else f"{where} {text}") from None


def convert(hint: Any, value: object) -> Any:
    """The TOML value as the hinted type; ValueError says what it must be."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin is Literal:
        if value in arguments:
            return value
        allowed = ", ".join(map(format_toml_value, arguments))
        raise ValueError(f"must be one of {allowed}, not {format_toml_value(value)}{_nearest(value, arguments)}")
    if origin in (Union, types.UnionType):
        return _convert_union([each for each in arguments if each is not type(None)], value)
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise ValueError(f"must be a list, not {format_toml_value(value)}")
        items = [convert(arguments[0], item) for item in value]
        return tuple(items) if origin is tuple else items
    if origin is not None or hint in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"must be a table such as {{ name = value }}, not {format_toml_value(value)}")
        return {key: convert(arguments[1], item) for key, item in value.items()} if len(arguments) == 2 else value
    return _convert_scalar(hint, value)


def _convert_union(hints: list[Any], value: object) -> Any:
    reasons = []
    for hint in hints:
        try:
            return convert(hint, value)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(reasons[0])


def _convert_scalar(hint: Any, value: object) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and number and float(typing.cast(float, value)).is_integer():
        return int(typing.cast(float, value))
    if hint is float and number:
        return float(typing.cast(float, value))
    if hint is str and isinstance(value, str):
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes", Path: "a path"}
    raise ValueError(f"must be {names.get(hint, hint)}, not {format_toml_value(value)}")


def _nearest(value: object, allowed: Iterable[object]) -> str:
    near = difflib.get_close_matches(str(value), [str(each) for each in allowed], n=1, cutoff=0.5)
    return f": did you mean {format_toml_value(near[0])}?" if near else ""
