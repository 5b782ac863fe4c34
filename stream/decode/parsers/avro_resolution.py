"""An Avro writer's schema under the names of its reader's: what lets the compiled loop read records that are resolved.

Where resolution changes more than names and what is skipped, such as promotions whose values differ, or defaults of
fields that are learned from, fastavro resolves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

SKIPPED = "\0"  # the name of a field that the reader does not have
# promotions after which a value is the same
SAME_VALUES = {("int", "long"), ("float", "double")}


class UnresolvedError(Exception):
    """fastavro must resolve."""


class Resolution:
    """Resolves the types of a writer's schema to those of a reader's."""

    def __init__(self, writer: Mapping[str, Any], reader: Mapping[str, Any], names: Sequence[str]) -> None:
        """The named types of both, as fastavro has parsed them; `names`: those of the fields that are learned from."""
        self._writer, self._reader, self._names = writer, reader, names

    def resolve(self, written: Any, read: Any, path: str = "", depth: int = 0) -> Any:
        """The writer's type with the reader's names. Raises UnresolvedError, KeyError, TypeError."""
        written, read = _document(written, self._writer), _document(read, self._reader)
        if depth > 64:
            raise UnresolvedError  # a type that has itself in it
        if isinstance(written, list) or isinstance(read, list):
            return self._union(written, read, path, depth)
        kind = written["type"]
        if kind in ("record", "error"):
            if read["type"] != kind or not _have_one_name(written, read):
                raise UnresolvedError
            return {**written, "fields": self._fields(written, read, path, depth)}
        if kind == "array":
            if read["type"] != "array":
                raise UnresolvedError
            return {**written, "items": self.resolve(written["items"], read["items"], path, depth + 1)}
        is_logical = "logicalType" in written or "logicalType" in read
        if _plain(written) != _plain(read) and (is_logical or (kind, read["type"]) not in SAME_VALUES):
            raise UnresolvedError
        return written

    def _union(self, written: Any, read: Any, path: str, depth: int) -> Any:
        if isinstance(written, list):
            if not isinstance(read, list) or len(written) != len(read):
                raise UnresolvedError
            kinds = [_document(each, self._writer)["type"] for each in written]
            if len(set(kinds)) < len(kinds) or kinds != [_document(each, self._reader)["type"] for each in read]:
                raise UnresolvedError
            return [self.resolve(one, other, path, depth + 1) for one, other in zip(written, read, strict=True)]
        others = [each for each in read if _document(each, self._reader)["type"] != "null"]
        if len(others) != 1 or written["type"] == "null":
            raise UnresolvedError
        return self.resolve(written, others[0], path, depth + 1)

    def _fields(self, written: Any, read: Any, path: str, depth: int) -> list[dict[str, Any]]:
        by_alias = {alias: field for field in read["fields"] for alias in field.get("aliases", ())}
        by_name = {field["name"]: field for field in read["fields"]}
        fields = []
        for field in written["fields"]:
            found = by_name.get(field["name"], by_alias.get(field["name"]))
            if found is None:
                fields.append({"name": SKIPPED, "type": field["type"]})
                continue
            name = found["name"]
            if by_name.pop(name, None) is None:
                raise UnresolvedError
            inner = f"{path}.{name}" if path else name
            fields.append({"name": name, "type": self.resolve(field["type"], found["type"], inner, depth + 1)})
        for name, field in by_name.items():
            inner = f"{path}.{name}" if path else name
            is_used = any(each == inner or each.startswith(f"{inner}.") for each in self._names)
            if "default" not in field or (is_used and field["default"] is not None):
                raise UnresolvedError
        return fields


def _document(schema: Any, named: Mapping[str, Any]) -> Any:
    """A type as a list, which is a union, or a mapping."""
    if isinstance(schema, list):
        return schema
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if isinstance(schema["type"], (list, dict)):
        return _document(schema["type"], named)
    if "name" not in schema and schema["type"] in named:
        return named[schema["type"]]
    return schema


def _have_one_name(written: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    name = written["name"].split(".")[-1]
    return bool(name == read["name"].split(".")[-1])


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A type without its documentation."""
    return {key: document[key] for key in document if key not in ("doc", "aliases") and not key.startswith("__")}
