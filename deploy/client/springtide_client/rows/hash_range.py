"""A part of all keys: the key hash is divided into contiguous ranges of equal size, as among the trainer's ranks.

Bases are sorted by key hash, so the rows of a range are one slice of each.
"""

# K keys, n rows
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from springtide_client.array_types import BoolArray, Int64Array, UInt16Array, UInt64Array
from springtide_client.keys import hash_keys
from springtide_client.rows.row_block import RowBlock

MAX_RANGES = 65_535
S32 = np.uint64(32)
TEXT = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")


@dataclass(frozen=True)
class HashRange:
    """Range `number`, counted from 1, of `count`; number 0 is a range without keys."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> "HashRange":
        """Return the range that "2/4" names; ValueError for another text."""
        match = TEXT.fullmatch(text)
        number, count = (0, 0) if match is None else (int(match[1]), int(match[2]))
        if not 1 <= number <= count <= MAX_RANGES:
            raise ValueError(f'{text!r} is not a range: the second of four is "2/4"')
        return HashRange(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def is_all(self) -> bool:
        """True if no key is left out."""
        return self.number == self.count == 1

    @property
    def is_empty(self) -> bool:
        """True if there are no keys in it."""
        return self.number == 0

    @property
    def start(self) -> int:
        """The first key hash."""
        return first_key_hash(max(0, self.number - 1), self.count)

    @property
    def end(self) -> int:
        """The key hash behind the last one, at most 2**64."""
        return first_key_hash(self.number, self.count)

    def slice_of(self, key_hash_n: UInt64Array) -> slice:
        """Return where the range's keys lie among sorted key hashes."""
        # 2**64 - 1 is the largest key hash, and belongs to the last range
        first = 0 if self.number <= 1 else int(key_hash_n.searchsorted(np.uint64(self.start)))
        end = len(key_hash_n) if self.number == self.count else int(key_hash_n.searchsorted(np.uint64(self.end)))
        return slice(first, 0 if self.is_empty else end)

    def select(self, layer: RowBlock) -> RowBlock:
        """Return the rows of a layer that are in the range. Nothing is copied."""
        return layer if self.is_all else layer.take(self.slice_of(layer.key_hash))

    def holds(self, key_hash_K: UInt64Array) -> BoolArray:
        """Return which key hashes are in the range."""
        held_K: BoolArray = owners_of(key_hash_K, self.count) + 1 == self.number
        return held_K


def first_key_hash(index: int, count: int) -> int:
    """Return the first key hash of a range, counted from 0."""
    return -(-(index << 32) // count) << 32


def owners_of(key_hash_K: UInt64Array, count: int) -> UInt16Array:
    """Return in which of `count` ranges each key hash is, counted from 0."""
    owners_K: UInt16Array = (((key_hash_K >> S32) * np.uint64(count)) >> S32).astype(np.uint16)
    return owners_K


def split_by_owner(features_K: UInt16Array, ids_K: Int64Array, count: int) -> dict[int, Int64Array]:
    """Return the places of the keys of each range that has some, by its number from 0, in ascending order.

    `features_K` may hold one feature for all ids.
    """
    owners_K = owners_of(hash_keys(features_K, ids_K), count)
    used = np.flatnonzero(np.bincount(owners_K, minlength=1)).tolist() if len(ids_K) else []
    return {number: np.flatnonzero(owners_K == number) for number in used}


# split_by_owner, or its compiled twin
KeySplit = Callable[[UInt16Array, Int64Array, int], dict[int, Int64Array]]

ALL_KEYS = HashRange(1, 1)
NO_KEYS = HashRange(0, 1)
