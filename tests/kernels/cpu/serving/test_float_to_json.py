import json

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.serving.float_to_json import NUMBER_BYTES, SLACK_BYTES, write_rows, write_rows_holding_gil

floats = st.floats(width=32)


def text_of(rows: np.ndarray, status=None, write=write_rows) -> str:
    status = np.zeros(len(rows), np.uint8) if status is None else np.array(status, np.uint8)
    room = len(rows) * (NUMBER_BYTES * rows.shape[1] + 5) + SLACK_BYTES
    out = np.full(room, ord("?"), np.uint8)
    return out[: write(rows, status, out)].tobytes().decode()


def assert_round_trip(numbers: np.ndarray) -> None:
    for write in (write_rows, write_rows_holding_gil):
        (texts,) = json.loads(text_of(numbers.reshape(1, -1), write=write), parse_float=str, parse_int=str)
        back = np.array([np.float32(text) for text in texts])
        twice = np.array([float(text) for text in texts]).astype(np.float32)
        np.testing.assert_array_equal(back.view(np.uint32), numbers.view(np.uint32))
        np.testing.assert_array_equal(twice.view(np.uint32), numbers.view(np.uint32))


@settings(max_examples=500, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
@example([0.0, -0.0, 1e-45, -1e-45, 1.1754943508222875e-38, 3.4028234663852886e38, 16777216.0, 8388609.0, 99999992.0])
def test_numbers_read_back_as_they_were(numbers) -> None:
    assert_round_trip(np.array(numbers, np.float32))


def test_numbers_of_every_size_read_back_as_they_were() -> None:
    random = np.random.default_rng(0)
    assert_round_trip(random.integers(0, 0x7F80_0000, 200_000).astype(np.uint32).view(np.float32))
    assert_round_trip(random.normal(0, 0.1, 200_000).astype(np.float32))
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    assert_round_trip(np.concatenate([powers, np.nextafter(powers, 0), np.nextafter(powers[:-1], np.inf)]))


def test_decimals_of_few_digits_stay_themselves() -> None:
    decimals = ["0.1", "0.9", "-0.3", "1.5", "1500.0", "0.00001", "1e-07", "2.5e-20", "1e+10", "123456.0", "0.999999"]
    numbers = np.array(decimals, np.float32)[None]
    assert text_of(numbers) == f"[[{','.join(decimals)}]]"


def test_usual_numbers_have_no_digit_too_many() -> None:
    numbers = np.random.default_rng(1).normal(0, 0.1, 20_000).astype(np.float32)
    numbers = numbers[abs(numbers) > 1e-5]
    (texts,) = json.loads(text_of(numbers[None]), parse_float=str)
    shortest = [np.format_float_positional(number, unique=True) for number in numbers]
    digits = [[len(text.lstrip("-0.").replace(".", "")) for text in found] for found in (texts, shortest)]
    assert digits[0] == digits[1]


def test_what_is_no_number_and_what_is_no_row_is_null() -> None:
    rows = np.array([[1, np.nan], [np.inf, -np.inf], [2, 3]], np.float32)
    assert text_of(rows, [0, 0, 1]) == "[[1.0,null],[null,null],null]"
    assert text_of(np.empty((0, 4), np.float32)) == "[]"
    assert text_of(np.empty((2, 0), np.float32), [0, 3]) == "[[],null]"


def test_the_longest_numbers_fit() -> None:
    longest = np.array([-1.1754944e-38, -0.000012345679, -12345678.9, -1.2345679e-5], np.float32)
    assert_round_trip(np.tile(longest, 100))
    assert len(text_of(np.tile(longest, (50, 4)))) <= 50 * (16 * NUMBER_BYTES + 5)
