"""Parses decimal numbers exactly: the float64 that Python's float() gives, or a refusal.

Clinger 1990 where mantissa and power are exact; else Eisel-Lemire ("Number parsing at a gigabyte per second",
Lemire 2021, which needs no fallback up to 19 digits: Mushtak, Lemire 2023). Refused: more digits, subnormals, overflow.
"""

from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import leading_zeros, multiply_high, trailing_zeros
from springtide.stream.decode.parsers.byte_ops import byte_at, compiled, inlined, load_word
from springtide.stream.decode.parsers.json_strings import HIGHS

# the kinds of a number
REFUSED, INTEGER, FLOAT = 0, 1, 2

MIN_POWER, MAX_POWER = -342, 308
EXACT_POWERS = np.array([10.0**power for power in range(23)])
TEN = np.uint64(10)
# of each byte: its digit, whether it is more than nine
ASCII_ZEROS, SEVENS, OVER_NINE = (np.uint64(byte * 0x0101_0101_0101_0101) for byte in (0x30, 0x7F, 0x76))
NO_BITS = np.uint64(0x78)
PAIRS, HUNDREDS, TEN_THOUSANDS = np.uint64(0xFF_0000_00FF), np.uint64(0xF4240_0000_0064), np.uint64(0x2710_0000_0001)
WHOLE_POWERS = np.array([10**power for power in range(9)], np.uint64)
MANTISSA_MASK = np.uint64((1 << 52) - 1)


def powers_of_five() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """5**q for every q, as 128 bits with the highest bit set: high and low words in turn; reciprocals rounded up."""
    words = []
    for q in range(MIN_POWER, MAX_POWER + 1):
        five = 5 ** abs(q)
        if q >= 0:
            bits = (five << 128) >> five.bit_length()
        else:
            shift = (five - 1).bit_length()
            bits = (1 << (shift + 127 if q >= -27 else 2 * shift + 128)) // five + 1
            bits >>= max(0, bits.bit_length() - 128)
        words += [bits >> 64, bits & 0xFFFF_FFFF_FFFF_FFFF]
    return np.array(words, np.uint64)


POWERS = powers_of_five()


@inlined
def parse_digits(buffer: Any, at: Any, end: Any, mantissa: Any, num_digits: Any) -> Any:
    """(position after the digits, mantissa including them, significant digits so far).

    Of two and more, eight bytes at once (Lemire 2018, "Quickly parsing eight digits"): no branch depends on how many of
    them are digits.
    """
    while at + 8 <= end and buffer[np.uint64(at + 1)] - np.uint8(48) <= np.uint8(9):
        word = load_word(buffer, np.uint64(at)) ^ ASCII_ZEROS
        others = (((word & SEVENS) + OVER_NINE) | word) & HIGHS
        # 8 for each digit
        shift = trailing_zeros(others) & NO_BITS if others != np.uint64(0) else np.uint64(64)
        if shift == np.uint64(0):
            return at, mantissa, num_digits
        # the last digit becomes the highest byte, and zeros precede the first
        word <<= np.uint64(64) - shift
        zeros = np.int64(trailing_zeros(word) >> np.uint64(3)) if word != np.uint64(0) else 8
        count = np.int64(shift >> np.uint64(3))
        num_digits += count if num_digits > 0 else 8 - zeros
        word = word * TEN + (word >> np.uint64(8))
        high, low = word & PAIRS, (word >> np.uint64(16)) & PAIRS
        value = (high * HUNDREDS + low * TEN_THOUSANDS) >> np.uint64(32)
        mantissa = mantissa * WHOLE_POWERS[count] + value
        at += count
        if count < 8:
            return at, mantissa, num_digits
    while at < end:
        digit = buffer[np.uint64(at)] - np.uint8(48)
        if digit > np.uint8(9):
            break
        mantissa = mantissa * TEN + np.uint64(digit)
        # twenty digits may wrap around to 0, so once the count has begun it continues
        num_digits += 1 if num_digits > 0 or mantissa != np.uint64(0) else 0
        at += 1
    return at, mantissa, num_digits


@compiled
def parse_number(buffer: Any, at: Any, end: Any, loose: Any) -> Any:
    """(position after it, REFUSED or INTEGER or FLOAT, is negative, mantissa, power of ten) of the number at `at`.

    By JSON's grammar or, when `loose`, that of numbers in strings, which allows a plus sign, leading zeros, "1.", ".5".
    """
    negative = byte_at(buffer, at, end) == 45
    if negative or (loose and byte_at(buffer, at, end) == 43):
        at += 1
    first = at
    at, mantissa, num_digits = parse_digits(buffer, at, end, np.uint64(0), 0)
    num_whole = at - first
    bad = not loose and (num_whole == 0 or (num_whole > 1 and buffer[np.uint64(first)] == 48))
    kind = INTEGER
    power = np.int64(0)
    num_decimals = 0
    if byte_at(buffer, at, end) == 46:
        kind = FLOAT
        first = at + 1
        at, mantissa, num_digits = parse_digits(buffer, first, end, mantissa, num_digits)
        num_decimals = at - first
        power = -num_decimals
        bad = bad or (num_decimals == 0 and not loose)
    bad = bad or num_whole + num_decimals == 0
    if byte_at(buffer, at, end) | np.uint8(32) == 101:
        kind = FLOAT
        at += 1
        sign = byte_at(buffer, at, end)
        if sign == 45 or sign == 43:
            at += 1
        first = at
        at, exponent, _ = parse_digits(buffer, at, end, np.uint64(0), 0)
        bad = bad or at == first or at - first > 4
        power += -np.int64(exponent) if sign == 45 else np.int64(exponent)
    if bad or num_digits > 19:
        return at, REFUSED, negative, mantissa, power
    return at, kind, negative, mantissa, power


@inlined
def to_float(negative: Any, mantissa: Any, power: Any) -> Any:
    """(whether it could be determined, the float64 nearest to the decimal number)."""
    if mantissa <= np.uint64(1 << 53) and -22 <= power <= 22:
        value = np.float64(np.int64(mantissa))  # one instruction, as it is not for a uint64
        value = value / EXACT_POWERS[np.uint64(-power)] if power < 0 else value * EXACT_POWERS[np.uint64(power)]
        return True, -value if negative else value
    return to_float_of_many_digits(negative, mantissa, power)


@compiled
def to_float_of_many_digits(negative: Any, mantissa: Any, power: Any) -> Any:
    """The same for any mantissa and power."""
    if mantissa == np.uint64(0) or power < MIN_POWER or power > MAX_POWER:
        return mantissa == np.uint64(0), -0.0 if negative else 0.0
    known, bits = nearest_bits(mantissa, power)
    value = np.uint64(bits).view(np.float64)
    return known, -value if negative else value


@compiled
def nearest_bits(mantissa: Any, power: Any) -> Any:
    """(whether it is a normal float64, its bits) of mantissa * 10**power; the mantissa is not 0."""
    zeros = leading_zeros(mantissa)
    word = mantissa << zeros
    index = 2 * (power - MIN_POWER)
    high = multiply_high(word, POWERS[index])
    low = word * POWERS[index]
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more = multiply_high(word, POWERS[index + 1])
        low += more
        if more > low:
            high += np.uint64(1)
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(9)
    digits = high >> shift
    exponent = ((np.int64(217706) * power) >> 16) + 63 + np.int64(upper) - np.int64(zeros) + 1023
    if exponent <= 0 or exponent >= 2046:
        return False, np.uint64(0)
    # exactly between two floats: round to even
    if low <= np.uint64(1) and -4 <= power <= 23 and digits & np.uint64(3) == np.uint64(1) and digits << shift == high:
        digits &= ~np.uint64(1)
    digits = (digits + (digits & np.uint64(1))) >> np.uint64(1)
    if digits >= np.uint64(1 << 53):
        digits = np.uint64(1 << 52)
        exponent += 1
    return True, (digits & MANTISSA_MASK) | (np.uint64(exponent) << np.uint64(52))
