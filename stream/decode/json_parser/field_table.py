"""A schema as arrays: what the scanner does with a field, and how it finds a field by its name."""

# J fields of the schema, W words of a name, H places of the hash table
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from springtide_client.keys import mix64
from springtide_client.schema import Schema

LABEL, WEIGHT, TIME, CATEGORICAL, LIST, DENSE = range(6)

MASK = 0xFFFF_FFFF_FFFF_FFFF


class FieldTable(NamedTuple):
    """Every field of a schema; plain arrays, so that Numba takes it as it is."""

    role_J: npt.NDArray[np.int64]
    column_J: npt.NDArray[np.int64]  # in the array of its role
    feature_J: npt.NDArray[np.int64]  # the number of an id feature
    limit_J: npt.NDArray[np.int64]  # of a list: so many first elements are kept, or if negative, last ones
    name_length_J: npt.NDArray[np.int64]
    name_words_JW: npt.NDArray[np.uint64]
    buckets_H: npt.NDArray[np.int64]  # field, or -1; found by name_hash, and then one after the other


def build_field_table(schema: Schema) -> FieldTable:
    """The plan of a schema."""
    fields: list[tuple[str, int, int, int, int]] = [
        *((name, LABEL, column, 0, 0) for column, name in enumerate(schema.labels)),
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
    num_words = max(1, *(-(-len(name) // 8) for name in names))
    padded = b"".join(name.ljust(8 * num_words, b"\0") for name in names)
    columns = np.array([field[1:] for field in fields], np.int64).T.copy()
    return FieldTable(
        role_J=columns[0],
        column_J=columns[1],
        feature_J=columns[2],
        limit_J=columns[3],
        name_length_J=np.array([len(name) for name in names], np.int64),
        name_words_JW=np.frombuffer(padded, "<u8").reshape(len(names), num_words).copy(),
        buckets_H=build_hash_table(names),
    )


def build_hash_table(names: list[bytes]) -> npt.NDArray[np.int64]:
    """An open-addressing table of field numbers, at most a quarter full so that misses end soon."""
    places = np.full(1 << (4 * len(names)).bit_length(), -1, np.int64)
    for number, name in enumerate(names):
        # a name that JSON can only write with escapes is never found by its bytes
        if any(byte < 32 or byte in b'"\\' for byte in name):
            continue
        place = name_hash(name) % len(places)
        while places[place] >= 0:
            place = (place + 1) % len(places)
        places[place] = number
    return places


def name_hash(name: bytes) -> int:
    """Of the first and last eight bytes and the length: the twin of the scanner's."""
    first, last = int.from_bytes(name[:8], "little"), int.from_bytes(name[-8:], "little")
    return mix64(first ^ ((last << 7 | last >> 57) & MASK) ^ len(name))
