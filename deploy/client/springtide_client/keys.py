"""What an id is: values to int64 ids, texts to hashes, (feature, id) to the mixed key that orders and places rows.

Part of the log's specification: kernels/cpu holds the same functions for Numba, equal bit by bit.
"""

# K keys
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.errors import EncodeError

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

MASK = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15
MIX_1 = 0xBF58_476D_1CE4_E5B9
MIX_2 = 0x94D0_49BB_1331_11EB
STRING_SEED = 0x5350_5249_4E47_5444  # "SPRINGTD"
GOLDEN_64, MIX_1_64, MIX_2_64 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# the row that the not-admitted keys of a feature share: key (feature + SHARED_ROW_OFFSET, id 0); features stay below it
SHARED_ROW_OFFSET = 32768


def mix64(x: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits."""
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def hash_string(text: bytes) -> int:
    """A text's id, int64: its UTF-8 bytes in little-endian words of 8 (the last padded with zeros), mixed in order."""
    state = mix64(STRING_SEED ^ len(text))
    for start in range(0, len(text), 8):
        state = mix64(state ^ int.from_bytes(text[start : start + 8], "little"))
    return state - 2**64 if state >= 2**63 else state


# a missing or null categorical value is a value of its own; no text has these bytes, for they are not UTF-8
MISSING_ID = hash_string(b"\xff")


def is_canonical_decimal(text: str) -> bool:
    """Whether the text is what `str(int)` gives: no plus sign, no leading zeros, no "-0", ASCII digits only."""
    digits = text[1:] if text[:1] == "-" else text
    if not digits or not digits.isascii() or not digits.isdigit():
        return False
    return digits[0] != "0" or text == "0"


def encode_id(value: Any) -> tuple[int, str | None]:
    """The int64 id of a categorical value, and its text where the id is a hash.

    An integer, an integral float below 2**53 and a text in canonical decimal are the same id where they fit in int64;
    an integer outside it is hashed as its decimal text, any other text is hashed; booleans are 0 and 1; None is
    `MISSING_ID`. Raises EncodeError `wrong_type` for anything else, `not_finite` for NaN and infinities.
    """
    if value is None:
        return MISSING_ID, None
    if isinstance(value, float):
        if not np.isfinite(value):
            raise EncodeError("not_finite", f"{value} is not a number that can be an id")
        if value != int(value) or abs(value) >= 2**53:
            raise EncodeError("wrong_type", f"{value!r} is no id: an id is an integer or a text")
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
    raise EncodeError("wrong_type", f"{type(value).__name__} is no id: an id is an integer or a text")


def mix_keys(features_K: npt.NDArray[np.uint16], ids_K: Int64Array) -> UInt64Array:
    """The mixed keys, uint64: rows are placed in buckets by their high bits and bases are sorted by them."""
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
