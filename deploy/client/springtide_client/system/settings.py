"""The base class of settings: each field is checked and converted by `msgspec` when an object is made.

Knows no file, no section and no command line. A wrong value is a ValueError of one line that names the key, what is
allowed, and the value.

"""

import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

import msgspec
from msgspec import Meta, inspect

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MAX_SIZE = 2**63 - 1
SIZE = {"is_size": True}
FINITE = {"is_finite": True}
INTERNAL = {"is_internal": True}
Size = Annotated[int, Meta(extra=SIZE)]
"""Bytes: an integer, or a string such as "2GiB", which becomes one. With a minimum: `Meta(ge=64, extra=SIZE)`."""


def parse_size(size: int | str) -> int:
    """Return the number of bytes; ValueError with the text where it is not a valid size."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if match is None or match[2].upper() not in UNITS:
            raise ValueError(f'{size!r} is not a valid size: write 4096, "64MiB" or "2GiB"')
        size = int(float(match[1]) * UNITS[match[2].upper()])
    if size < 0:
        raise ValueError(f"{size} is not a valid size: it is negative")
    return size


def format_size(num_bytes: int) -> str:
    """Return the size in its largest binary unit that divides it: 65536 is "64KiB", 1000 is "1000"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % UNITS[unit.upper()] == 0:
            return f"{num_bytes // UNITS[unit.upper()]}{unit}"
    return str(num_bytes)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings whose values must fit their annotations.

    A field's `Meta` holds its range and its `description`; `extra=FINITE` excludes infinity; `extra=INTERNAL` marks a
    field that code sets and no configuration file may name; `extra={"table": Other}` marks a mapping whose keys are
    those of the Settings class `Other`.
    A subclass checks what depends on several fields in `__post_init__`, after `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        for name, key in keys(type(self)).items():
            msgspec.structs.force_setattr(self, name, key.convert(getattr(self, name)))

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the settings that a table holds; ValueError for an unknown key or a wrong value."""
        known = [name for name, key in keys(cls).items() if not key.is_internal]
        for name in table:
            if name not in known:
                raise ValueError(unknown_key(name, known))
        return cls(**table)


class SettingsKey(msgspec.Struct, frozen=True):
    """One field of a Settings class."""

    name: str
    annotation: Any
    kind: inspect.Type
    default: Any  # NODEFAULT where the field is required
    description: str
    is_internal: bool
    table: type[Settings] | None  # the settings inside, where the value is a table of them

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return describe(self.kind)

    def convert(self, value: object) -> Any:
        """Return the value as its annotation has it; ValueError with the name, what is allowed, and the value."""
        try:
            value = msgspec.convert(_prepare(value, self.kind), self.annotation, dec_hook=_decode_path)
        except NestedError as error:
            raise ValueError(f"{self.name} {error}") from None
        except (ValueError, TypeError, OverflowError):
            near = nearest(value, self.kind.values) if isinstance(self.kind, inspect.LiteralType) else None
            hint = f": did you mean {format_value(near)}?" if near else ""
            raise ValueError(f"{self.name} must be {self.allowed}, not {format_value(value)}{hint}") from None
        if self.table is not None and isinstance(value, Mapping):
            try:
                self.table.of(value)
            except ValueError as error:
                raise ValueError(f"{self.name} {error}") from None
        return value


class NestedError(ValueError):
    """A wrong value inside a table; its text begins with the key inside."""


@functools.cache
def keys(settings_class: type[Settings]) -> dict[str, SettingsKey]:
    """Return the fields of a Settings class by name."""
    info = inspect.type_info(settings_class)
    assert isinstance(info, inspect.StructType)
    annotations = get_type_hints(settings_class, include_extras=True)
    return {field.name: _key(field, annotations[field.name]) for field in info.fields}


def _key(field: inspect.Field, annotation: Any) -> SettingsKey:
    metadata = field.type if isinstance(field.type, inspect.Metadata) else None
    extra = (metadata and metadata.extra) or {}
    kind = metadata.type if metadata and not extra.keys() & {"is_size", "is_finite"} else field.type
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    table = extra.get("table")
    if isinstance(kind, inspect.UnionType):
        table = table or next((each.cls for each in kind.types if isinstance(each, inspect.StructType)), None)
    description = ((metadata and metadata.extra_json_schema) or {}).get("description", "")
    return SettingsKey(field.name, annotation, kind, default, description, bool(extra.get("is_internal")), table)


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Return the error text for a key that is not known, with the nearest one that is."""
    known = sorted(known)
    near = nearest(name, known, cutoff=0.4)
    return f"has an unknown key {name!r}: " + (f"did you mean {near}?" if near else f"known here: {', '.join(known)}")


def nearest(word: object, known: Iterable[object], cutoff: float = 0.5) -> Any:
    """Return the known value whose text is most like the word's; None if no text is close."""
    by_text = {str(each): each for each in known}
    found = difflib.get_close_matches(str(word), by_text, n=1, cutoff=cutoff)
    return by_text[found[0]] if found else None


def format_value(value: object) -> str:
    """Return the value as a configuration file would show it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, (str, Path)) else str(value)


def describe(info: inspect.Type) -> str:
    """Return what a value of the type may be, in words: `a whole number from 1 to 256`."""
    if isinstance(info, inspect.Metadata):
        extra = info.extra or {}
        words = _describe_size(info.type) if extra.get("is_size") else describe(info.type)
        return words.replace("a number", "a finite number") if extra.get("is_finite") else words
    if isinstance(info, inspect.UnionType):
        return " or ".join(describe(each) for each in info.types if not isinstance(each, inspect.NoneType))
    if isinstance(info, inspect.LiteralType):
        return ("one of " if len(info.values) > 1 else "") + ", ".join(map(format_value, info.values))
    if isinstance(info, (inspect.IntType, inspect.FloatType)):
        return _describe_number(info)
    if isinstance(info, (inspect.ListType, inspect.VarTupleType)):
        return f"a list in which each item is {describe(info.item_type)}"
    if isinstance(info, inspect.StrType):
        return "a string that is not empty" if info.min_length else "a string in quotes"
    if isinstance(info, inspect.DictType) and not isinstance(info.value_type, inspect.AnyType):
        return f"a table in which each value is {describe(info.value_type)}"
    if isinstance(info, inspect.BoolType):
        return "true or false"
    return "a path in quotes" if isinstance(info, inspect.CustomType) else "a table such as { name = value }"


def _describe_number(info: inspect.IntType | inspect.FloatType) -> str:
    words = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    if info.ge is not None and info.le is not None:
        return f"{words} from {_number(info.ge)} to {_number(info.le)}"
    limits = []
    if info.ge is not None or info.gt is not None:
        limits.append(f"of at least {_number(info.ge)}" if info.ge is not None else f"above {_number(info.gt)}")
    if info.le is not None or info.lt is not None:
        limits.append(f"at most {_number(info.le)}" if info.le is not None else f"below {_number(info.lt)}")
    return " ".join([words, " and ".join(limits)]).strip()


def _describe_size(info: inspect.Type) -> str:
    lowest = getattr(info, "ge", None) or 0
    return 'a size such as 4096 or "2GiB"' + (f", at least {format_size(lowest)}" if lowest else "")


def _number(value: float | None) -> str:
    return str(int(value)) if value is not None and float(value).is_integer() else str(value)


def _prepare(value: Any, info: inspect.Type) -> Any:
    """Return the value with sizes as integers, whole floats as integers where due, inner tables as settings."""
    if isinstance(info, inspect.Metadata):
        extra = info.extra or {}
        if extra.get("is_size") and not isinstance(value, bool):
            if isinstance(value, float):
                raise ValueError("a size has no fraction")
            value = parse_size(value)
            if value > MAX_SIZE:
                raise ValueError("beyond 64 bits")
            return value
        if extra.get("is_finite") and value in (math.inf, -math.inf):
            raise ValueError("infinite")
        return _prepare(value, info.type)
    if isinstance(info, inspect.UnionType):
        choices = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        return value if value is None or len(choices) > 1 else _prepare(value, choices[0])
    if isinstance(info, inspect.IntType) and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(info, inspect.DictType) and isinstance(value, Mapping):
        return {key: _prepare(item, info.value_type) for key, item in value.items()}
    if isinstance(info, inspect.StructType) and isinstance(value, Mapping):
        try:
            return info.cls.of(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise NestedError(str(error)) from None
    return value


def _decode_path(expected: type, value: object) -> Any:
    if expected is Path and isinstance(value, (str, Path)):
        return Path(value)
    raise ValueError(f"must be {expected.__name__}")
