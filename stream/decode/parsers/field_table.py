"""The schema as arrays: the role of each field, and a hash table that finds a field by the bytes of its name.

The Python half builds the table, the compiled half looks names up.
"""

# J fields of the schema, W words of a name, H buckets of the hash table
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.hashing import mix64
from springtide.stream.decode.parsers.byte_ops import byte_at, compiled, inlined, load_word, partial_word
from springtide.stream.decode.parsers.json_strings import QUOTE
from springtide_client.keys import mix64 as mix64_of_int
from springtide_client.schema import Schema

LABEL, WEIGHT, TIME, CATEGORICAL, LIST, DENSE, VALUE_LABEL, KEY = range(8)
NO_FEATURE = -1  # of an id whose string nobody needs

MASK = 0xFFFF_FFFF_FFFF_FFFF
KEY_END = b'":'
S7, S57 = np.uint64(7), np.uint64(57)


class FieldTable(NamedTuple):
    """Every field of a schema, as plain arrays that compiled functions can take."""

    role_J: npt.NDArray[np.int64]
    column_J: npt.NDArray[np.int64]  # in the array of its role
    feature_J: npt.NDArray[np.int64]  # the number of an id feature
    limit_J: npt.NDArray[np.int64]  # of a list: keep this many first elements or, if negative, last elements
    name_length_J: npt.NDArray[np.int64]
    name_words_JW: npt.NDArray[np.uint64]
    # the name as it stands in most records, with a quote and a colon behind it; which bits of its words count
    key_words_JW: npt.NDArray[np.uint64]
    key_masks_JW: npt.NDArray[np.uint64]
    buckets_H: npt.NDArray[np.int64]  # a field, or -1; open addressing by name_hash
    needs_label: bool  # False: a record need not have one


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
    names = [name.encode() for name, *_ in fields]
    columns = np.array([field[1:] for field in fields], np.int64).T.copy()
    return FieldTable(
        role_J=columns[0],
        column_J=columns[1],
        feature_J=columns[2],
        limit_J=columns[3],
        name_length_J=np.array([len(name) for name in names], np.int64),
        name_words_JW=words_of(names),
        key_words_JW=words_of([name + KEY_END for name in names]),
        key_masks_JW=words_of([b"\xff" * len(name + KEY_END) for name in names]),
        buckets_H=build_hash_table(names),
        needs_label=has_labels,
    )


def words_of(texts: list[bytes]) -> npt.NDArray[np.uint64]:
    """Each text as a row of little-endian words, padded with zeros."""
    num_words = max(1, *(-(-len(text) // 8) for text in texts))
    padded = b"".join(text.ljust(8 * num_words, b"\0") for text in texts)
    return np.frombuffer(padded, "<u8").reshape(len(texts), num_words).copy()


def build_hash_table(names: list[bytes]) -> npt.NDArray[np.int64]:
    """An open-addressing table of field numbers, at most a quarter full so that misses end soon; -1 = empty."""
    buckets_H = np.full(1 << (4 * len(names)).bit_length(), -1, np.int64)
    for number, name in enumerate(names):
        # a name that JSON can only write with escapes is never found by its bytes
        if any(byte < 32 or byte in b'"\\' for byte in name):
            continue
        bucket = name_hash(name) % len(buckets_H)
        while buckets_H[bucket] >= 0:
            bucket = (bucket + 1) % len(buckets_H)
        buckets_H[bucket] = number
    return buckets_H


def name_hash(name: bytes) -> int:
    """A hash of the first and last eight bytes and the length; find_field() computes the same."""
    first, last = int.from_bytes(name[:8], "little"), int.from_bytes(name[-8:], "little")
    return mix64_of_int(first ^ ((last << 7 | last >> 57) & MASK) ^ len(name))


@inlined
def matches_key(buffer: Any, at: Any, end: Any, fields: Any, field: Any) -> Any:
    """Return True if the field's name, a closing quote and a colon are at `at`, and more words than those behind it."""
    length = fields.name_length_J[field] + len(KEY_END)
    if at + length > end or at + length + 7 > len(buffer):
        return False
    done, word = 0, np.uint64(0)
    while done < length:
        found = load_word(buffer, np.uint64(at + done)) ^ fields.key_words_JW[np.uint64(field), word]
        if found & fields.key_masks_JW[np.uint64(field), word] != np.uint64(0):
            return False
        done += 8
        word += np.uint64(1)
    return True


@inlined
def matches_name(buffer: Any, at: Any, end: Any, fields: Any, field: Any) -> Any:
    """Return True if the field's name and a closing quote are at `at`."""
    length = fields.name_length_J[field]
    if byte_at(buffer, at + length, end) != QUOTE:
        return False
    done, word = 0, 0
    while done < length:
        num_bytes = min(8, length - done)
        if partial_word(buffer, at + done, num_bytes) != fields.name_words_JW[field, word]:
            return False
        done += 8
        word += 1
    return True


@compiled
def find_field(buffer: Any, at: Any, close: Any, end: Any, fields: Any) -> Any:
    """The number of the field whose name is between `at` and `close`; -1 if the schema has no such field."""
    length = close - at
    first = partial_word(buffer, at, min(8, length))
    last = partial_word(buffer, close - min(8, length), min(8, length))
    mask = np.uint64(len(fields.buckets_H) - 1)
    bucket = mix64(first ^ (last << S7 | last >> S57) ^ np.uint64(length)) & mask
    while fields.buckets_H[bucket] >= 0:
        field = fields.buckets_H[bucket]
        if fields.name_length_J[field] == length and matches_name(buffer, at, end, fields, field):
            return field
        bucket = (bucket + np.uint64(1)) & mask
    return np.int64(-1)
