"""From values to keys: a value to its int64 id, a string to its hash, (feature, id) to the key hash that orders rows.

Part of the log's specification. kernels/cpu has the same functions for Numba, bitwise equal.
"""

# K keys
from typing import Any

import numpy as np

from springtide_client.array_types import Int64Array, UInt16Array, UInt64Array
from springtide_client.errors import EncodeError

MASK = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15
MIX_1 = 0xBF58_476D_1CE4_E5B9
MIX_2 = 0x94D0_49BB_1331_11EB
STRING_SEED = 0x5350_5249_4E47_5444  # "SPRINGTD"
GOLDEN_64, MIX_1_64, MIX_2_64 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# all ids of a feature that are not admitted share the row (feature + SHARED_ROW_OFFSET, id 0); features are below it
SHARED_ROW_OFFSET = 32768
# the feature number of the rows of crosses (springtide_client.wide.slots); features are below it
CROSSES = 32767


def mix64(x: int) -> int:
    """Apply the finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64 bits."""
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def hash_string(utf8: bytes) -> int:
    """Return a string's id, int64: its UTF-8 bytes, as little-endian words of 8 (zero-padded), mixed in order."""
    state = mix64(STRING_SEED ^ len(utf8))
    for start in range(0, len(utf8), 8):
        state = mix64(state ^ int.from_bytes(utf8[start : start + 8], "little"))
    return state - 2**64 if state >= 2**63 else state


# a missing or null categorical value has an id of its own; no string has these bytes, because they are not UTF-8
MISSING_ID = hash_string(b"\xff")


def is_canonical_decimal(text: str) -> bool:
    """Return True if `str(int)` could return the text: no plus sign, no leading zeros, no "-0", ASCII digits only."""
    digits = text[1:] if text[:1] == "-" else text
    if not digits or not digits.isascii() or not digits.isdigit():
        return False
    return digits[0] != "0" or text == "0"


def encode_id(value: Any) -> tuple[int, str | None]:
    """Return the int64 id of a categorical value, and its string if the id is a hash.

    An integer, an integral float below 2**53 and a canonical decimal string are the same id if they fit in int64. An
    integer outside int64 is hashed as its decimal string, any other string is hashed. Booleans are 0 and 1, None is
    `MISSING_ID`. Raises EncodeError `wrong_type` for anything else, `not_finite` for NaN and infinities.
    """
    if value is None:
        return MISSING_ID, None
    if isinstance(value, float):
        if not np.isfinite(value):
            raise EncodeError("not_finite", f"{value} is not a valid id: it is not finite")
        if value != int(value) or abs(value) >= 2**53:
            raise EncodeError("wrong_type", f"{value!r} is not a valid id: give an integer or a string")
        return int(value), None
    if isinstance(value, int):  # bool too
        if INT64_MIN <= value <= INT64_MAX:
            return int(value), None
        text = str(value)
        return hash_string(text.encode()), text
    if isinstance(value, str):
        if len(value) <= 20 and is_canonical_decimal(value):
            number = int(value)
            if INT64_MIN <= number <= INT64_MAX:
                return number, None
        try:
            return hash_string(value.encode()), value
        except UnicodeEncodeError:
            raise EncodeError("wrong_type", f"{value!r} is not valid Unicode (a lone surrogate)") from None
    raise EncodeError("wrong_type", f"{type(value).__name__} is not a valid id: give an integer or a string")


def hash_keys(features_K: UInt16Array, ids_K: Int64Array) -> UInt64Array:
    """Return key hashes, uint64 (K): their high bits choose a row's bucket, and bases are sorted by them."""
    return mix64_array(ids_K.astype(np.uint64) ^ (features_K.astype(np.uint64) * GOLDEN_64))


def mix64_array(x_K: UInt64Array) -> UInt64Array:
    """Apply `mix64` in place and return the array: with few keys, allocations would cost more than the mixing."""
    t_K = x_K >> S30
    x_K ^= t_K
    x_K *= MIX_1_64
    np.right_shift(x_K, S27, out=t_K)
    x_K ^= t_K
    x_K *= MIX_2_64
    np.right_shift(x_K, S31, out=t_K)
    x_K ^= t_K
    return x_K
