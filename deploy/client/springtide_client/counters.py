"""How often, and when last, something was seen: decayed counts of ids, rates beside those of everything, age.

A count with a half-life of H ticks is halved in H ticks. What became known in one tick is a sum of whole 256ths, added
and rounded once for a tick: the same numbers in any order of arrival. What a sample reads follows from its event time
alone, as of springtide_client.memory.

A row has, as float32: how many ticks wait; the newest tick of its samples (2 whole numbers below 2**24); the tick as of
which its counts are (2); the counts, E events x H half-lives; then each waiting tick, the oldest first: how far it is
after the newest one, and of each event the sum in 256ths (2 whole numbers below 2**24). A tick waits while a sample may
come that does not read it. kernels/cpu/counter_rows has the same functions for Numba, bitwise equal.
"""

# N samples, U rows, D numbers of a row, E events, H half-lives, F features, X numbers of the tables of powers
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import BoolArray, Float32Array, Float64Array, Int64Array, UInt16Array, UInt64Array
from springtide_client.keys import MISSING_ID, mix64_array
from springtide_client.memory import Remembered

SHOWN = "shown"  # the event that every sample is
AGE = "age"
COUNT, RATE, AGE_KIND = range(3)  # kinds of numbers
ALL_ID = MISSING_ID  # of the row of everything, in the table of each counter
PARTS = 256  # of an amount of 1
NUM_HEAD = 5  # numbers of a row before its counts
TICK_OFFSET = 64  # of what is written of a waiting tick, so that none is below 0
MAX_AFTER = 1 << 23  # ticks from a sample's own to the first in which it is read
VISIBLE_AFTER = 2  # ticks
VANISHES = 24  # half-lives, after which a count is 0
HALF_LIFE = re.compile(r"([0-9]+)(s|m|h|d)")
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LOW_32 = np.uint64(0xFFFF_FFFF)
LN_2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476
LOG_TERMS = tuple(1.0 / odd for odd in range(21, 0, -2))


# a tick takes ln 2 / half-life of a count, which in float32 must not be lost beside it: 48 days in ticks of a second
MAX_HALF_LIFE_TICKS = 1 << 22


def parse_half_life(text: str) -> int:
    """Return ms of a time such as 10m, 1h or 30d; ValueError for anything else."""
    found = HALF_LIFE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r} is not a time such as 30s, 10m, 1h or 7d")
    return int(found[1]) * UNITS_MS[found[2]]


@dataclass(frozen=True, kw_only=True)
class Counter(Remembered):
    """Decayed counts of the ids of one feature, of pairs of ids of two, or of everything."""

    key: tuple[str, ...]  # categorical features: none, one or two
    count: tuple[str, ...]  # the events: SHOWN, or labels
    half_lives: tuple[str, ...]
    rates: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name -> two events
    prior: float = 20.0  # samples at the rate of everything
    numbers: tuple[str, ...]  # what samples read: `shown.10m`, `ctr.1h`, `age`

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The dense features that it makes."""
        return tuple(f"{self.name}.{number}" for number in self.numbers)

    @property
    def id_features(self) -> tuple[str, ...]:
        return self.key

    @cached_property
    def half_life_ticks(self) -> tuple[int, ...]:
        """Each half-life in whole ticks, 1 or more."""
        return tuple(max(1, round(parse_half_life(text) / self.tick_ms)) for text in self.half_lives)

    @property
    def num_slots(self) -> int:
        """The ticks that may wait at a time."""
        return self.settled_after + 2 - (-self.delay_ms // self.tick_ms)

    @property
    def settled_after(self) -> int:
        """How many ticks after a row's newest sample no sample comes any more that reads less."""
        return self.pending_ticks - 3

    @property
    def dim(self) -> int:
        """The numbers in a row."""
        num_events = len(self.count)
        return NUM_HEAD + num_events * len(self.half_lives) + self.num_slots * (1 + 2 * num_events)

    @property
    def vanishes_after(self) -> int:
        """The ticks after which a row says nothing any more: the counts are 0, and the age is missing."""
        return VANISHES * max(self.half_life_ticks)

    @property
    def row_ttl_seconds(self) -> int:
        """How long after its newest sample no sample reads a row any more."""
        return -(-(self.vanishes_after + 2 * self.pending_ticks) * self.tick_ms // 1000)

    @property
    def reads_all(self) -> bool:
        """True if it compares with the row of everything."""
        return RATE in self.places_4F[0]

    @property
    def row_settings(self) -> tuple[object, ...]:
        """The settings by which its rows are what they are."""
        when = self.tick_ms, self.known, self.delay_ms, self.lateness_ms
        return self.name, self.key, self.count, self.half_lives, when

    @cached_property
    def all_numbers(self) -> dict[str, tuple[int, int, int, int]]:
        """What can be read, by name: COUNT, RATE or AGE_KIND; one or two events; the half-life."""
        found: dict[str, tuple[int, int, int, int]] = {}
        for event, name in enumerate(self.count):
            found |= {f"{name}.{text}": (COUNT, event, 0, place) for place, text in enumerate(self.half_lives)}
        for name, (first, second) in self.rates.items():
            events = self.count.index(first), self.count.index(second)
            found |= {f"{name}.{text}": (RATE, *events, place) for place, text in enumerate(self.half_lives)}
        return found | {AGE: (AGE_KIND, 0, 0, 0)}

    @property
    def default_numbers(self) -> tuple[str, ...]:
        """The counts of the first event, the rates, the age."""
        first = (f"{self.count[0]}.{text}" for text in self.half_lives)
        rates = (f"{name}.{text}" for name in self.rates for text in self.half_lives)
        return (*first, *rates, AGE)

    @cached_property
    def places_4F(self) -> Int64Array:
        """Each of `numbers`, as in `all_numbers`."""
        return np.array([self.all_numbers[name] for name in self.numbers], np.int64).reshape(-1, 4).T.copy()


class Powers(NamedTuple):
    """2 ** (-m / H) for 0 <= m < H, as the product of two numbers: m // width and m % width say which ones."""

    ticks_H: Int64Array
    width_H: Int64Array
    start_H: Int64Array  # of the numbers for m % width; those for m // width follow
    powers_X: Float64Array


@cache
def powers_of(half_lives: tuple[int, ...]) -> Powers:
    """Return the tables of these half-lives, in ticks: correctly rounded, hence the same on every machine."""
    context, log_2 = Context(prec=40), Decimal(2).ln(Context(prec=45))
    widths: list[int] = []
    starts: list[int] = []
    powers: list[float] = []

    def power(ticks: int, half_life: int) -> float:
        return float(context.exp(context.divide(context.multiply(log_2, Decimal(-ticks)), Decimal(half_life))))

    for half_life in half_lives:
        width = math.isqrt(half_life - 1) + 1
        widths.append(width)
        starts.append(len(powers))
        powers += [power(m, half_life) for m in range(width)]
        powers += [power(m, half_life) for m in range(0, half_life, width)]
    return Powers(
        np.array(half_lives, np.int64), np.array(widths, np.int64), np.array(starts, np.int64), np.array(powers)
    )


def decay(ticks_N: Int64Array, powers: Powers) -> Float64Array:
    """Return what remains of a count of 1 after so many ticks, (N, H)."""
    halvings_NH, rest_NH = np.divmod(ticks_N[:, None], powers.ticks_H)
    high_NH, low_NH = np.divmod(rest_NH, powers.width_H)
    fine_NH = powers.powers_X[powers.start_H + low_NH]
    coarse_NH = powers.powers_X[powers.start_H + powers.width_H + high_NH]
    left_NH: Float64Array = np.ldexp(coarse_NH * fine_NH, -np.minimum(halvings_NH, VANISHES).astype(np.int32))
    left_NH[halvings_NH >= VANISHES] = 0.0
    return left_NH


def natural_log(x: Float64Array) -> Float64Array:
    """Return natural logarithms of numbers above 0, by additions, products and quotients alone.

    So the bits are the same on every machine, which those of a library's logarithm are not. Within 1e-15 of it.
    """
    mantissa, exponent = np.frexp(x)
    is_small = mantissa < SQRT_HALF
    mantissa = np.where(is_small, mantissa * 2.0, mantissa)
    exponent = np.where(is_small, exponent - 1, exponent)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    terms = np.full_like(ratio, LOG_TERMS[0])
    for term in LOG_TERMS[1:]:
        terms = terms * square + term
    result: Float64Array = exponent * LN_2 + 2.0 * ratio * terms
    return result


class Counted(NamedTuple):
    """What samples read of rows: decayed counts, and the ticks since something was seen, -1 for never."""

    counts_NEH: Float32Array
    age_N: Int64Array


def read_counts(rows_ND: Float32Array, counter: Counter, event_ms_N: Int64Array) -> Counted:
    """Return what each sample reads of its row; rows of NaN are those of ids without one."""
    num, num_events, num_half_lives = len(rows_ND), len(counter.count), len(counter.half_lives)
    powers, tick_N = powers_of(counter.half_life_ticks), event_ms_N // counter.tick_ms
    has_row_N = ~np.isnan(rows_ND[:, 0])
    head_N5 = np.where(has_row_N[:, None], rows_ND[:, :NUM_HEAD], 0).astype(np.int64)
    num_waiting_N, newest_N = head_N5[:, 0], head_N5[:, 1] << 24 | head_N5[:, 2]
    at_N = head_N5[:, 3] << 24 | head_N5[:, 4]
    end = NUM_HEAD + num_events * num_half_lives
    counts_NEH = rows_ND[:, NUM_HEAD:end].reshape(num, num_events, num_half_lives).astype(np.float32)
    counts_NEH[~has_row_N] = 0
    for slot in range(int(num_waiting_N.max(initial=0))):
        start = end + slot * (1 + 2 * num_events)
        is_here_N = slot < num_waiting_N
        numbers_NW = np.where(is_here_N[:, None], rows_ND[:, start : start + 1 + 2 * num_events], 0).astype(np.int64)
        from_N = newest_N + numbers_NW[:, 0] - TICK_OFFSET
        is_read_N = is_here_N & (from_N <= tick_N)
        sums_NE = (numbers_NW[:, 1::2] << 24 | numbers_NW[:, 2::2]) / PARTS
        left_N1H = decay(np.where(is_read_N, np.abs(from_N - at_N), 0), powers)[:, None]
        before_NEH, is_later_N11 = counts_NEH.astype(np.float64), (from_N >= at_N)[:, None, None]
        # where a later tick was counted early, for lack of room, what is left of this one is added to it
        added_NEH = np.where(
            is_later_N11, before_NEH * left_N1H + sums_NE[:, :, None], before_NEH + sums_NE[:, :, None] * left_N1H
        )
        counts_NEH = np.where(is_read_N[:, None, None], added_NEH.astype(np.float32), counts_NEH)
        at_N = np.where(is_read_N, np.maximum(at_N, from_N), at_N)
    ticks_N = np.maximum(tick_N - at_N, 0)
    counts_NEH = (counts_NEH.astype(np.float64) * decay(ticks_N, powers)[:, None]).astype(np.float32)
    return Counted(counts_NEH, np.where((at_N > 0) & (ticks_N < counter.vanishes_after), ticks_N, -1))


def numbers_of(counter: Counter, own: Counted, everything: Counted | None) -> Float32Array:
    """Return the counter's features, (N, F). `everything`: what the samples read of all, where there are rates."""
    numbers_NF = np.empty((len(own.age_N), len(counter.numbers)), np.float32)
    kinds_F, first_F, second_F, place_F = counter.places_4F
    counts = np.flatnonzero(kinds_F == COUNT)
    numbers_NF[:, counts] = own.counts_NEH[:, first_F[counts], place_F[counts]]
    seconds_N = np.where(own.age_N >= 0, own.age_N * counter.tick_ms / 1000.0, np.nan).astype(np.float32)
    numbers_NF[:, kinds_F == AGE_KIND] = seconds_N[:, None]
    if everything is not None:
        rates = np.flatnonzero(kinds_F == RATE)
        events = (first_F[rates], place_F[rates]), (second_F[rates], place_F[rates])
        num_NR, den_NR = (own.counts_NEH[:, *event].astype(np.float64) for event in events)
        all_num_NR, all_den_NR = (everything.counts_NEH[:, *event].astype(np.float64) for event in events)
        rate_NR = (all_num_NR + 1.0) / (all_den_NR + 2.0)
        smoothed_NR = (num_NR + counter.prior * rate_NR) / (den_NR + counter.prior)
        numbers_NF[:, rates] = natural_log(smoothed_NR / rate_NR)
    return numbers_NF


class PairHalf(NamedTuple):
    """What the ids of all pairs with one id have in common."""

    number: int  # of the counter's rows
    place: int  # of the id in the pair: 0 or 1
    half: int

    def holds(self, features_K: UInt16Array, ids_K: Int64Array) -> BoolArray:
        """Return which keys are those of such pairs; one other pair in 2**32 is taken for one."""
        half_K = ids_K.astype(np.uint64) >> np.uint64(32) if self.place == 0 else ids_K.astype(np.uint64) & LOW_32
        is_held_K: BoolArray = (features_K == self.number) & (half_K == self.half) & (ids_K != ALL_ID)
        return is_held_K


def half_ids(ids_N: Int64Array) -> UInt64Array:
    """Return the 32 bits by which ids are in pairs."""
    return mix64_array(ids_N.astype(np.uint64)) >> np.uint64(32)


def pair_ids(first_N: Int64Array, second_N: Int64Array) -> Int64Array:
    """Return the ids of pairs: half of either id's hash, so that the rows of a forgotten id are found."""
    return (half_ids(first_N) << np.uint64(32) | half_ids(second_N)).astype(np.int64)
