"""The schema as arrays: the role of each field, and a hash table that finds a field by the bytes of its name.

The Python half builds the table, the compiled half looks names up, each in the object that it stands in: object 0 is
the record. A field `user.id` has its whole name in the record, and the name `id` in the object `user`.
"""

# J fields of the schema, X names: those of fields, of fields in objects, of objects; G objects, W words, H buckets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.hashing import mix64
from springtide.stream.decode.parsers.byte_ops import byte_at, compiled, inlined, load_word, partial_word
from springtide.stream.decode.parsers.json_strings import QUOTE
from springtide_client.keys import mix64 as mix64_of_int
from springtide_client.schema import Schema, field_paths

LABEL, WEIGHT, TIME, CATEGORICAL, LIST, DENSE, VALUE_LABEL, KEY = range(8)
NO_FEATURE = -1  # of an id whose string nobody needs

MASK = 0xFFFF_FFFF_FFFF_FFFF
KEY_END = b'":'
OBJECT_SHIFT = 40
S7, S57, S_OBJECT = np.uint64(7), np.uint64(57), np.uint64(OBJECT_SHIFT)


class FieldTable(NamedTuple):
    """Every field of a schema, as plain arrays that compiled functions can take."""

    role_J: npt.NDArray[np.int64]
    column_J: npt.NDArray[np.int64]  # in the array of its role
    feature_J: npt.NDArray[np.int64]  # the number of an id feature
    limit_J: npt.NDArray[np.int64]  # of a list: keep this many first elements or, if negative, last elements
    field_X: npt.NDArray[np.int64]  # of a name; -1: it is that of an object. The first J are the fields themselves
    object_X: npt.NDArray[np.int64]  # in which the name stands
    opened_X: npt.NDArray[np.int64]  # the object that it is the name of, or 0
    parent_G: npt.NDArray[np.int64]  # in which an object stands
    name_length_X: npt.NDArray[np.int64]
    name_words_XW: npt.NDArray[np.uint64]
    # the name as it stands in most records, with a quote and a colon behind it; which bits of its words count
    key_words_XW: npt.NDArray[np.uint64]
    key_masks_XW: npt.NDArray[np.uint64]
    buckets_H: npt.NDArray[np.int64]  # a name, or -1; open addressing by name_hash
    needs_label: bool  # False: a record need not have one

    @property
    def has_paths(self) -> bool:
        """Whether a field lies in an object."""
        return len(self.parent_G) > 1


def build_field_table(schema: Schema, keys: Sequence[str] = (), *, has_labels: bool = True) -> FieldTable:
    """The field table of a schema. `keys`: further ids; without `has_labels`, no labels."""
    fields: list[tuple[str, int, int, int, int]] = [
        *(
            (name, VALUE_LABEL if name in schema.links else LABEL, column, 0, 0)
            for column, name in enumerate(schema.labels if has_labels else ())
        ),
        *((name, KEY, column, NO_FEATURE, 0) for column, name in enumerate(keys)),
        *((name, WEIGHT, 0, 0, 0) for name in [schema.weight] if name is not None),
        *((name, TIME, 0, 0, 0) for name in [schema.timestamp] if name is not None),
        *((name, CATEGORICAL, column, schema.number(name), 0) for column, name in enumerate(schema.categorical)),
        *(
            (
                name,
                LIST,
                column,
                schema.number(name),
                schema.length_limit(name) * (-1 if name in schema.sequence else 1),
            )
            for column, name in enumerate(schema.lists)
        ),
        *((name, DENSE, column, 0, 0) for column, name in enumerate(schema.dense)),
    ]
    placed = place_names([name for name, *_ in fields], field_paths([*schema.names, *keys]))
    names = [each.name.encode() for each in placed]
    objects = [each.object for each in placed]
    columns = np.array([field[1:] for field in fields], np.int64).T.copy()
    return FieldTable(
        role_J=columns[0],
        column_J=columns[1],
        feature_J=columns[2],
        limit_J=columns[3],
        field_X=np.array([each.field for each in placed], np.int64),
        object_X=np.array(objects, np.int64),
        opened_X=np.array([each.opened for each in placed], np.int64),
        parent_G=np.array([0, *(each.object for each in placed if each.opened)], np.int64),
        name_length_X=np.array([len(name) for name in names], np.int64),
        name_words_XW=words_of(names),
        key_words_XW=words_of([name + KEY_END for name in names]),
        key_masks_XW=words_of([b"\xff" * len(name + KEY_END) for name in names]),
        buckets_H=build_hash_table(names, objects),
        needs_label=has_labels,
    )


class PlacedName(NamedTuple):
    """A name, the object that it stands in, and the field or the object that it is the name of."""

    name: str
    object: int
    field: int = -1
    opened: int = 0


def place_names(names: Sequence[str], paths: Mapping[str, tuple[str, ...]]) -> list[PlacedName]:
    """The names of the fields, in their order, and then what leads to those that have a path, each object once."""
    placed = [PlacedName(name, 0, field) for field, name in enumerate(names)]
    numbers = {name: field for field, name in enumerate(names)}
    objects: dict[tuple[str, ...], int] = {(): 0}
    for whole_name, path in paths.items():
        for depth in range(1, len(path)):
            if path[:depth] not in objects:
                objects[path[:depth]] = len(objects)
                placed.append(PlacedName(path[depth - 1], objects[path[: depth - 1]], opened=objects[path[:depth]]))
        if whole_name in numbers:
            placed.append(PlacedName(path[-1], objects[path[:-1]], numbers[whole_name]))
    return placed


def field_names(schema: Schema, keys: Sequence[str] = (), *, has_labels: bool = True) -> list[str]:
    """The names of the fields, in the order of the field table."""
    labels = list(schema.labels) if has_labels else []
    others = [name for name in (schema.weight, schema.timestamp) if name is not None]
    return [*labels, *keys, *others, *schema.categorical, *schema.lists, *schema.dense]


def words_of(texts: list[bytes]) -> npt.NDArray[np.uint64]:
    """Each text as a row of little-endian words, padded with zeros."""
    num_words = max(1, *(-(-len(text) // 8) for text in texts))
    padded = b"".join(text.ljust(8 * num_words, b"\0") for text in texts)
    return np.frombuffer(padded, "<u8").reshape(len(texts), num_words).copy()


def build_hash_table(
    names: Sequence[bytes], objects: Sequence[int], *, are_quoted: bool = True
) -> npt.NDArray[np.int64]:
    """An open-addressing table of names by number, at most a quarter full so that misses end soon; -1 = empty.

    `are_quoted`: as in JSON, where names may have escapes.
    """
    buckets_H = np.full(1 << (4 * len(names)).bit_length(), -1, np.int64)
    for number, (name, object_) in enumerate(zip(names, objects, strict=True)):
        # a name that JSON can only write with escapes is never found by its bytes
        if are_quoted and any(byte < 32 or byte in b'"\\' for byte in name):
            continue
        bucket = name_hash(name, object_) % len(buckets_H)
        while buckets_H[bucket] >= 0:
            bucket = (bucket + 1) % len(buckets_H)
        buckets_H[bucket] = number
    return buckets_H


def name_hash(name: bytes, object_: int) -> int:
    """A hash of the first and last eight bytes, the length and the object; find_name() computes the same."""
    first, last = int.from_bytes(name[:8], "little"), int.from_bytes(name[-8:], "little")
    return mix64_of_int(first ^ ((last << 7 | last >> 57) & MASK) ^ len(name) ^ object_ << OBJECT_SHIFT)


@inlined
def matches_key(buffer: Any, at: Any, end: Any, fields: Any, name: Any) -> Any:
    """Return True if the name, a closing quote and a colon are at `at`, and more words than those behind it."""
    length = fields.name_length_X[name] + len(KEY_END)
    if at + length > end or at + length + 7 > len(buffer):
        return False
    done, word = 0, np.uint64(0)
    while done < length:
        found = load_word(buffer, np.uint64(at + done)) ^ fields.key_words_XW[np.uint64(name), word]
        if found & fields.key_masks_XW[np.uint64(name), word] != np.uint64(0):
            return False
        done += 8
        word += np.uint64(1)
    return True


@inlined
def matches_name(buffer: Any, at: Any, end: Any, fields: Any, name: Any) -> Any:
    """Return True if the name and a closing quote are at `at`."""
    length = fields.name_length_X[name]
    if byte_at(buffer, at + length, end) != QUOTE:
        return False
    done, word = 0, 0
    while done < length:
        num_bytes = min(8, length - done)
        if partial_word(buffer, at + done, num_bytes) != fields.name_words_XW[name, word]:
            return False
        done += 8
        word += 1
    return True


@inlined
def is_name(buffer: Any, at: Any, length: Any, fields: Any, name: Any) -> Any:
    """Return True if the bytes at `at` are the name."""
    if fields.name_length_X[name] != length:
        return False
    done, word = 0, 0
    while done < length:
        num_bytes = min(8, length - done)
        if partial_word(buffer, at + done, num_bytes) != fields.name_words_XW[name, word]:
            return False
        done += 8
        word += 1
    return True


@compiled
def find_name(buffer: Any, at: Any, close: Any, fields: Any, buckets_H: Any, object_: Any) -> Any:
    """The number of the name between `at` and `close`, in an object; -1 if the schema has no such name there."""
    length = close - at
    first = partial_word(buffer, at, min(8, length))
    last = partial_word(buffer, close - min(8, length), min(8, length))
    mask = np.uint64(len(buckets_H) - 1)
    key = first ^ (last << S7 | last >> S57) ^ np.uint64(length) ^ np.uint64(object_) << S_OBJECT
    bucket = mix64(key) & mask
    while buckets_H[bucket] >= 0:
        name = buckets_H[bucket]
        if fields.object_X[name] == object_ and is_name(buffer, at, length, fields, name):
            return name
        bucket = (bucket + np.uint64(1)) & mask
    return np.int64(-1)
