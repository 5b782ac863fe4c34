"""What samples read of decayed counts, from all that happened: no rows, no order of arrival, no tables of powers."""

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import cache

import numpy as np

from springtide_client.counters import Counter

Event = tuple[int, tuple[int, ...]]  # when it became known, in ms, and the amount of each event in 256ths
CONTEXT = Context(prec=60)


def f32(x: float) -> float:
    return float(np.float32(x))


@cache
def power(part: int, half_life: int) -> float:
    """Return 2 ** (-part / half_life), rounded once."""
    return float(CONTEXT.power(Decimal(2), CONTEXT.divide(Decimal(-part), Decimal(half_life))))


def decay(ticks: int, half_life: int) -> float:
    """Return what is left of 1 after so many ticks: of a long half-life the product of two powers."""
    if ticks >= 24 * half_life:
        return 0.0
    rest, width = ticks % half_life, math.ceil(math.sqrt(half_life))
    both = power(rest // width * width, half_life) * power(rest % width, half_life)
    return math.ldexp(both, -(ticks // half_life))


def counts(events: Sequence[Event], event_ms: int, counter: Counter) -> tuple[int, list[list[float]]]:
    """Return the ticks since something was seen, -1 for never, and the count of each event at each half-life."""
    sums: dict[int, list[int]] = {}
    tick, num_events = event_ms // counter.tick_ms, len(counter.count)
    for known_ms, amounts in events:
        if (from_tick := known_ms // counter.tick_ms + 2) <= tick:
            before = sums.get(from_tick, [0] * num_events)
            sums[from_tick] = [a + b for a, b in zip(before, amounts, strict=True)]
    if not sums:
        return -1, [[0.0] * len(counter.half_lives) for _ in range(num_events)]
    at = min(sums)
    found = [[0.0] * len(counter.half_lives) for _ in range(num_events)]
    for from_tick in sorted(sums):  # once for a tick, and rounded once
        for e in range(num_events):
            for h, half_life in enumerate(counter.half_life_ticks):
                found[e][h] = f32(found[e][h] * decay(from_tick - at, half_life) + sums[from_tick][e] / 256)
        at = from_tick
    left = [[f32(x * decay(tick - at, H)) for x, H in zip(own, counter.half_life_ticks, strict=True)] for own in found]
    age = tick - at
    return age if age < 24 * max(counter.half_life_ticks) else -1, left


def rate(num: float, den: float, num_all: float, den_all: float, prior: float) -> float:
    """Return the logarithm of a smoothed rate beside that of everything, within a unit in its last place."""
    p = (num_all + 1) / (den_all + 2)
    return f32(math.log((num + prior * p) / (den + prior) / p))
