import random
import re
import struct

import numba
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from springtide.stream.decode.parsers.byte_ops import OPTIONS
from springtide.stream.decode.parsers.json_numbers import FLOAT, INTEGER, REFUSED, parse_digits, parse_number, to_float


def _read(buffer, loose):
    at, kind, negative, mantissa, power = parse_number(buffer, 0, len(buffer), loose)
    known, value = to_float(negative, mantissa, power) if kind != REFUSED else (False, 0.0)
    return at, kind, known, value


compiled_read = numba.njit(**OPTIONS)(_read)


def read(text: str, *, loose: bool = False):
    return compiled_read(np.frombuffer(text.encode() + b"\0", np.uint8), loose)


def assert_exact(text: str) -> bool:
    at, kind, known, value = read(text)
    assert at == len(text)
    if kind != REFUSED and known:
        assert struct.pack("d", value) == struct.pack("d", float(text)), text
    return bool(known)


@numba.njit(**OPTIONS)
def compiled_digits(buffer, end):
    return parse_digits(buffer, 0, end, np.uint64(0), 0)


@settings(max_examples=1000, deadline=None)
@given(st.from_regex(rb"[0-9]{0,25}", fullmatch=True), st.binary(max_size=12), st.integers(0, 12))
@example(b"0000000000000000001", b",", 0)
@example(b"12345678", b"/", 0)
@example(b"1", b":\xb0\xff9999999", 0)
@example(b"1234", b"5678", 4)
def test_digits_are_read_up_to_the_first_other_byte_or_the_end(digits, rest, num_beyond):
    """The last `num_beyond` bytes lie beyond the end: those of the next record."""
    data = digits + rest
    end = max(0, len(data) - num_beyond)
    found = re.match(rb"[0-9]*", data[:end]).group()
    at, mantissa, num_digits = compiled_digits(np.frombuffer(data + b"\0", np.uint8), end)
    assert at == len(found)
    assert mantissa == int(found or b"0") % 2**64
    assert num_digits == len(found.lstrip(b"0"))


@settings(max_examples=1000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(2.2250738585072014e-308)
@example(1.7976931348623157e308)
def test_a_float_as_python_writes_it_is_read_exactly(number):
    known = assert_exact(repr(number))
    assert known or abs(number) < 2.3e-308 or abs(number) > 8.9e307


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(-345, 310), st.booleans())
@example(9007199254740993, 0, False)
@example(9007199254740993, 1, True)
@example(9007199254740995, -1, False)
@example(9999999999999999999, 289, False)
def test_nineteen_digits_and_any_power_are_read_exactly_or_refused(mantissa, power, negative):
    assert_exact(f"{'-' if negative else ''}{mantissa}e{power}")


def test_numbers_halfway_between_two_floats_go_to_the_even_one():
    rng = random.Random(7)
    for _ in range(20_000):
        # an odd multiple of half a unit in the last place, whose digits still fit
        whole = rng.randrange(2**52, 2**53)
        text = f"{2 * whole + 1}" if rng.random() < 0.5 else f"{(2 * whole + 1) * 5}e-1"
        assert assert_exact(text + ("" if "e" in text else ".0"))


def test_random_floats_are_not_refused():
    rng = random.Random(8)
    assert all(assert_exact(repr(rng.uniform(-1e6, 1e6))) for _ in range(20_000))


def test_grammar():
    for text in ("0", "-0", "10", "-1"):
        assert read(text)[:2] == (len(text), INTEGER)
    for text in ("0.5", "1e5", "1E+05", "-0.0", "1.25e-3", "0.000000000000000000000000000001234567890123456789"):
        assert read(text)[:2] == (len(text), FLOAT)
    for text in ("", "-", ".5", "1.", "01", "00", "+1", "1e", "1e+", "1.e1", "-.1", "12345678901234567890", "e5"):
        assert read(text)[1] == REFUSED
    for text in (".5", "1.", "01", "+1", "-.5e1", "+007.250"):
        assert read(text, loose=True)[1:3] != (REFUSED, False)
        assert read(text, loose=True)[3] == float(text)
    for text in (".", "", "+", "-", "e1", ".e1"):
        assert read(text, loose=True)[1] == REFUSED
