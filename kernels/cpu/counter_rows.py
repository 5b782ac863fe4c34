"""What samples read of rows of decayed counts, and what they add to them: springtide_client.counters, compiled.

A row depends on the samples alone that it has met, not on their order or batches: a tick is added to the counts once no
sample comes any more that must not read it.
"""

# K reads of rows, U rows, D numbers of a row, E events, H half-lives, X numbers of the tables of powers
# N samples, F features
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide_client.counters import Counter, powers_of

NONE = -1
LOW_24 = 0xFFFFFF
NUM_HEAD = 5
PARTS = 256.0
TICK_OFFSET, MAX_AFTER, VISIBLE_AFTER, VANISHES = 64, 1 << 23, 2, 24
COUNT, RATE = 0, 1  # kinds of numbers
LN_2, SQRT_HALF = 0.6931471805599453, 0.7071067811865476
HALVES = np.array([2.0**-n for n in range(VANISHES)])
Array = npt.NDArray[Any]


class CounterRules(NamedTuple):
    """The settings of one counter."""

    tick_ms: int
    num_slots: int
    settled_after: int  # ticks
    vanishes_after: int  # ticks
    ticks_H: Array  # int64; these as in springtide_client.counters.Powers
    width_H: Array
    start_H: Array
    powers_X: Array  # float64


class CounterBatch(NamedTuple):
    """What samples bring, in order."""

    rows_K: Array  # int64: the row of each
    event_ms_K: Array  # int64
    known_ms_K: Array  # int64: when it became known, NONE: it does not count
    amounts_KE: Array  # int64, in 256ths


def rules_of(counter: Counter) -> CounterRules:
    """Return a counter's settings as the kernels take them."""
    powers = powers_of(counter.half_life_ticks)
    return CounterRules(counter.tick_ms, counter.num_slots, counter.settled_after, counter.vanishes_after, *powers)


def read_numbers(
    rows_KD: Array, counter: Counter, event_ms_K: Array, all_N: Array | None, has_row_N: Array
) -> npt.NDArray[np.float32]:
    """Return the features that samples read of rows: springtide_client.recall.read_numbers, compiled."""
    counts_KEH = np.empty((len(rows_KD), len(counter.count), len(counter.half_lives)), np.float32)
    age_K = np.empty(len(rows_KD), np.int64)
    read_rows(rules_of(counter), np.ascontiguousarray(rows_KD), event_ms_K, counts_KEH, age_K)
    if all_N is not None:
        counts_KEH = np.concatenate([counts_KEH[: len(has_row_N)], counts_KEH[all_N]])
    numbers_NF = np.empty((len(has_row_N), len(counter.numbers)), np.float32)
    write_numbers(counter.places_4F, counter.prior, counter.tick_ms, counts_KEH, age_K, has_row_N, numbers_NF)
    return numbers_NF


@njit(nogil=True, cache=True)
def read_rows(rules: Any, rows_KD: Array, event_ms_K: Array, counts_KEH: Array, age_K: Array) -> None:
    """Write what samples read of rows, as `walk_counts`; rows of NaN are those of ids without one."""
    for k in range(len(rows_KD)):
        if np.isnan(rows_KD[k, 0]):
            counts_KEH[k], age_K[k] = 0, NONE
        else:
            age_K[k] = read_row(rules, rows_KD[k], event_ms_K[k] // rules.tick_ms, counts_KEH[k])


@njit(nogil=True, cache=True)
def walk_counts(
    rules: Any, rows_UD: Array, batch: Any, counts_KEH: Array, age_K: Array, early_K: Array, num_dropped_1: Array
) -> None:
    """Let each sample read its row, then count it.

    Written are the counts, float32; the ticks since something was seen, int64, -1 for never; and whether a sample came
    too late to read the row as it was. To `num_dropped_1`, int64, are added the ticks for which a row had no room.
    """
    for k in range(len(batch.rows_K)):
        row_D = rows_UD[batch.rows_K[k]]
        tick = batch.event_ms_K[k] // rules.tick_ms
        age_K[k] = read_row(rules, row_D, tick, counts_KEH[k])
        early_K[k] = tick < (np.int64(row_D[3]) << 24 | np.int64(row_D[4]))
        known_ms = batch.known_ms_K[k]
        if known_ms >= 0:
            after = min(known_ms // rules.tick_ms + VISIBLE_AFTER - tick, MAX_AFTER)
            num_dropped_1[0] += add_to_row(rules, row_D, tick, tick + after, batch.amounts_KE[k])


@njit(nogil=True, cache=True)
def decay(rules: Any, ticks: int, h: int) -> float:
    """Return what remains of a count of 1 after so many ticks."""
    half_life, width = rules.ticks_H[h], rules.width_H[h]
    halvings = ticks // half_life
    if halvings >= VANISHES:
        return 0.0
    rest = ticks - halvings * half_life
    high = rest // width
    start = rules.start_H[h]
    fine, coarse = rules.powers_X[start + rest - high * width], rules.powers_X[start + width + high]
    return float(coarse * fine * HALVES[halvings])


@njit(nogil=True, cache=True)
def read_row(rules: Any, row_D: Array, tick: int, counts_EH: Array) -> int:
    """Write the counts of a row as of a tick; returns the ticks since something was seen, -1 for never."""
    num_events, num_half_lives = counts_EH.shape
    at = np.int64(row_D[3]) << 24 | np.int64(row_D[4])
    newest = np.int64(row_D[1]) << 24 | np.int64(row_D[2])
    place = NUM_HEAD
    for e in range(num_events):
        for h in range(num_half_lives):
            counts_EH[e, h] = row_D[place]
            place += 1
    for _ in range(int(row_D[0])):
        from_tick = newest + np.int64(row_D[place]) - TICK_OFFSET
        if from_tick > tick:
            break
        for h in range(num_half_lives):
            left = decay(rules, abs(from_tick - at), h)
            for e in range(num_events):
                sum_256ths = np.int64(row_D[place + 1 + 2 * e]) << 24 | np.int64(row_D[place + 2 + 2 * e])
                if from_tick >= at:
                    counts_EH[e, h] = np.float64(counts_EH[e, h]) * left + sum_256ths / PARTS
                else:  # a later tick was counted early, for lack of room
                    counts_EH[e, h] = np.float64(counts_EH[e, h]) + sum_256ths / PARTS * left
        at = max(at, from_tick)
        place += 1 + 2 * num_events
    ticks: Any = max(tick - at, 0)
    for h in range(num_half_lives):
        left = decay(rules, ticks, h)
        for e in range(num_events):
            counts_EH[e, h] = np.float64(counts_EH[e, h]) * left
    return ticks if at > 0 and ticks < rules.vanishes_after else NONE


@njit(nogil=True, cache=True)
def add_to_row(rules: Any, row_D: Array, tick: int, from_tick: int, amounts_E: Array) -> int:
    """Count a sample of a tick, to be read from another on. Returns 1 if a tick was counted early for lack of room."""
    width = 1 + 2 * len(amounts_E)
    start = NUM_HEAD + len(amounts_E) * len(rules.ticks_H)
    before = np.int64(row_D[1]) << 24 | np.int64(row_D[2])
    newest: Any = max(tick, before)
    settled = newest - rules.settled_after  # every sample that may still come reads up to here
    num_waiting, num_folded, num_dropped = int(row_D[0]), 0, 0
    while num_folded < num_waiting:
        place = start + num_folded * width
        waiting = before + np.int64(row_D[place]) - TICK_OFFSET
        if waiting > settled:
            break
        fold(rules, row_D, waiting, sums_of(row_D, place, len(amounts_E)))
        num_folded += 1
    if num_folded > 0 or newest > before:
        num_waiting = keep_from(row_D, start, width, num_folded, num_waiting, newest - before)
        row_D[1], row_D[2] = newest >> 24, newest & LOW_24
    offset = from_tick - newest + TICK_OFFSET
    at = num_waiting
    while at > 0 and row_D[start + (at - 1) * width] >= offset:
        at -= 1
    if from_tick > settled and not (at < num_waiting and row_D[start + at * width] == offset):
        if num_waiting == rules.num_slots:
            oldest = newest + np.int64(row_D[start]) - TICK_OFFSET
            fold(rules, row_D, oldest, sums_of(row_D, start, len(amounts_E)))
            num_waiting = keep_from(row_D, start, width, 1, num_waiting, 0)
            at -= 1
            num_dropped = 1
        if at >= 0:
            for place in range(start + num_waiting * width - 1, start + at * width - 1, -1):
                row_D[place + width] = row_D[place]
            row_D[start + at * width] = offset
            for place in range(start + at * width + 1, start + (at + 1) * width):
                row_D[place] = 0
            num_waiting += 1
    row_D[0] = num_waiting
    if from_tick <= settled or at < 0:
        fold(rules, row_D, from_tick, amounts_E)
        return num_dropped
    for e in range(len(amounts_E)):
        place = start + at * width + 1 + 2 * e
        total = (np.int64(row_D[place]) << 24 | np.int64(row_D[place + 1])) + amounts_E[e]
        row_D[place], row_D[place + 1] = total >> 24, total & LOW_24
    return num_dropped


@njit(nogil=True, cache=True)
def sums_of(row_D: Array, place: int, num_events: int) -> Any:
    """Return the sums of a waiting tick, int64 (E), in 256ths."""
    sums_E = np.empty(num_events, np.int64)
    for e in range(num_events):
        sums_E[e] = np.int64(row_D[place + 1 + 2 * e]) << 24 | np.int64(row_D[place + 2 + 2 * e])
    return sums_E


@njit(nogil=True, cache=True)
def keep_from(row_D: Array, start: int, width: int, first: int, num_waiting: int, moved: int) -> int:
    """Keep the waiting ticks from one on, `moved` ticks further before the newest one; returns how many they are."""
    num_kept = num_waiting - first
    for slot in range(num_kept):
        into, source = start + slot * width, start + (first + slot) * width
        row_D[into] = row_D[source] - moved
        row_D[into + 1 : into + width] = row_D[source + 1 : source + width]
    row_D[start + num_kept * width : start + num_waiting * width] = 0
    return num_kept


@njit(nogil=True, cache=True)
def fold(rules: Any, row_D: Array, from_tick: int, sums_E: Array) -> None:
    """Add the sums of a tick to the counts; those of a tick before theirs as what is left of them."""
    at = np.int64(row_D[3]) << 24 | np.int64(row_D[4])
    for h in range(len(rules.ticks_H)):
        left = decay(rules, abs(from_tick - at), h)
        for e in range(len(sums_E)):
            place = NUM_HEAD + e * len(rules.ticks_H) + h
            if from_tick >= at:
                row_D[place] = np.float64(row_D[place]) * left + sums_E[e] / PARTS
            else:
                row_D[place] = np.float64(row_D[place]) + sums_E[e] / PARTS * left
    if from_tick > at:
        row_D[3], row_D[4] = from_tick >> 24, from_tick & LOW_24


@njit(nogil=True, cache=True)
def write_numbers(
    places_4F: Array, prior: float, tick_ms: int, counts_KEH: Array, age_K: Array, has_row_N: Array, numbers_NF: Array
) -> None:
    """Write the features of samples, float32: springtide_client.counters.numbers_of; NaN for those without a row.

    Of N samples: `counts_KEH` has what they read of their rows, then, where there are rates, of that of everything.
    """
    num_samples, num_features = numbers_NF.shape
    for n in range(num_samples):
        for f in range(num_features):
            kind, first, second, h = places_4F[0, f], places_4F[1, f], places_4F[2, f], places_4F[3, f]
            if not has_row_N[n]:
                numbers_NF[n, f] = np.nan
            elif kind == COUNT:
                numbers_NF[n, f] = counts_KEH[n, first, h]
            elif kind == RATE:
                num, den = np.float64(counts_KEH[n, first, h]), np.float64(counts_KEH[n, second, h])
                every = counts_KEH[num_samples + n]
                rate = (np.float64(every[first, h]) + 1.0) / (np.float64(every[second, h]) + 2.0)
                numbers_NF[n, f] = natural_log((num + prior * rate) / (den + prior) / rate)
            else:
                numbers_NF[n, f] = age_K[n] * tick_ms / 1000.0 if age_K[n] >= 0 else np.nan


@njit(nogil=True, cache=True)
def natural_log(x: float) -> float:
    """Return the logarithm of a number above 0, the same bits on every machine: springtide_client.counters."""
    mantissa, exponent = math.frexp(x)
    if mantissa < SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square, terms = ratio * ratio, 1.0 / 21
    for odd in range(19, 0, -2):
        terms = terms * square + 1.0 / odd
    return exponent * LN_2 + 2.0 * ratio * terms
