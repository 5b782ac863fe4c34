"""Rows of decayed counts: what samples read equals the oracle over all that happened, in any order and any batches."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.counter_rows import NONE, CounterBatch, read_numbers, rules_of, walk_counts, write_numbers
from springtide_client import recall
from springtide_client.counters import RATE, Counted, Counter, natural_log, numbers_of, read_counts
from tests.support.counter_oracle import counts, rate

START_MS = 1_700_000_000_000
COUNTER = Counter(
    name="item", key=("item_id",), count=("shown", "click"), half_lives=("3s", "40s", "1h"), numbers=("age",)
)


@st.composite
def counters(draw: st.DrawFn) -> Counter:
    """Counters with short and long delays and ticks."""
    changes = {
        "tick_ms": draw(st.sampled_from([500, 1000, 5000])),
        "delay_ms": draw(st.sampled_from([0, 700, 3000])),
        "lateness_ms": draw(st.sampled_from([0, 2000])),
    }
    return replace(COUNTER, **changes)


@st.composite
def arrivals(draw: st.DrawFn, counter: Counter, most_late_ms: int):
    """Samples in the order of arrival, each at most so late: event time, whether it counts, amounts."""
    happened_ms, samples = START_MS, []
    for _ in range(draw(st.integers(1, 80))):
        happened_ms += draw(st.sampled_from([0, 0, 100, 1000, 1500, 2500, 60_000]))
        amounts = draw(st.sampled_from([0, 1, 256])), draw(st.sampled_from([0, 77, 256]))
        sample = happened_ms, draw(st.integers(0, 9)) > 0, amounts
        samples.append((happened_ms + draw(st.integers(0, most_late_ms)), sample))
    if draw(st.booleans()):
        later_ms = happened_ms + draw(st.sampled_from([30 * 3_600_000, 2**35]))
        samples.append((later_ms, (later_ms, True, (256, 1))))
    return [sample for _, sample in sorted(samples, key=lambda one: one[0])]


def walk_all(samples, counter: Counter, cuts=()):
    """Return what each sample reads, the row at the end, and how many were early or had no room."""
    row_1D, num_dropped_1, found, num_early = np.zeros((1, counter.dim), np.float32), np.zeros(1, np.int64), [], 0
    bounds = [0, *sorted(cuts), len(samples)]
    for start, stop in itertools.pairwise(bounds):
        part, num = samples[start:stop], stop - start
        event_ms_N = np.array([ms for ms, *_ in part], np.int64)
        known_ms_N = np.array([ms + counter.delay_ms if is_counted else NONE for ms, is_counted, _ in part], np.int64)
        amounts_NE = np.array([amounts for *_, amounts in part], np.int64).reshape(num, len(counter.count))
        batch = CounterBatch(np.zeros(num, np.int64), event_ms_N, known_ms_N, amounts_NE)
        counts_NEH = np.empty((num, len(counter.count), len(counter.half_lives)), np.float32)
        age_N, early_N = np.empty(num, np.int64), np.empty(num, np.bool_)
        walk_counts(rules_of(counter), row_1D, batch, counts_NEH, age_N, early_N, num_dropped_1)
        found += zip(age_N.tolist(), counts_NEH.tolist(), strict=True)
        num_early += int(early_N.sum())
    return found, row_1D[0], (num_early, int(num_dropped_1[0]))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_samples_read_what_the_oracle_says_in_any_order_and_any_batches(data: st.DataObject) -> None:
    counter = data.draw(counters())
    # a sample of the next tick but one must not come before
    samples = data.draw(arrivals(counter, counter.delay_ms + min(counter.lateness_ms, counter.tick_ms - 1)))
    events = [(ms + counter.delay_ms, amounts) for ms, is_counted, amounts in samples if is_counted]
    found, row_D, exceptions = walk_all(samples, counter)
    assert exceptions == (0, 0)
    assert found == [counts(events, ms, counter) for ms, *_ in samples]
    assert np.isfinite(row_D).all()
    in_batches = walk_all(samples, counter, data.draw(st.lists(st.integers(0, len(samples)), max_size=4)))
    assert in_batches[0] == found
    np.testing.assert_array_equal(in_batches[1], row_D)
    newest_ms = max(ms for ms, *_ in samples)
    asked_ms_N = newest_ms + np.array([0, 500, 2000, 9000, 10**7, 86_400_000], np.int64)
    read = read_counts(np.repeat(row_D[None], len(asked_ms_N), axis=0), counter, asked_ms_N)
    expected = [counts(events, ms, counter) for ms in asked_ms_N.tolist()]
    served = replace(counter, rates={"ctr": ("click", "shown")}, numbers=("ctr.3s", "shown.1h", "age"))
    rows_KD = np.stack([np.full_like(row_D, np.nan), *[row_D] * (2 * len(asked_ms_N) - 1)])
    asked = rows_KD, served, np.tile(asked_ms_N, 2), np.arange(6, 12), np.arange(6) != 4
    np.testing.assert_array_equal(read_numbers(*asked), recall.read_numbers(*asked))
    assert list(zip(read.age_N.tolist(), read.counts_NEH.tolist(), strict=True)) == expected


AMOUNTS = st.floats(0, 2.0**30, width=32)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(*[AMOUNTS] * 12), min_size=1, max_size=9), st.floats(1e-3, 1e4), st.data())
def test_features_are_bit_by_bit_those_of_the_reference(amounts, prior: float, data: st.DataObject) -> None:
    counter = replace(COUNTER, rates={"ctr": ("click", "shown"), "rtc": ("shown", "click")}, prior=prior)
    counter = replace(counter, numbers=tuple(counter.all_numbers))
    num = len(amounts)
    counts_KEH = np.array(amounts, np.float32).reshape(2 * num, 2, 3)
    age_K = np.array(data.draw(st.lists(st.integers(-1, 2**40), min_size=2 * num, max_size=2 * num)), np.int64)
    numbers_NF, has_row_N = np.empty((num, len(counter.numbers)), np.float32), np.ones(num, np.bool_)
    write_numbers(counter.places_4F, counter.prior, counter.tick_ms, counts_KEH, age_K, has_row_N, numbers_NF)
    halves = [Counted(counts_KEH[part], age_K[part]) for part in (slice(num), slice(num, None))]
    np.testing.assert_array_equal(numbers_NF, numbers_of(counter, *halves))
    for n, own in enumerate(numbers_NF):
        for number, value in zip(counter.numbers, own.tolist(), strict=True):
            kind, first, second, h = counter.all_numbers[number]
            if kind == RATE:
                read = [float(half.counts_NEH[n, event, h]) for half in halves for event in (first, second)]
                assert value == pytest.approx(rate(*read, prior), rel=2e-7, abs=1e-15)


@given(st.floats(2.0**-500, 2.0**500))
def test_logarithms_are_those_of_the_library(x: float) -> None:
    assert float(natural_log(np.array([x]))[0]) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_row_does_not_depend_on_the_order_in_which_samples_come(data: st.DataObject) -> None:
    counter = data.draw(counters())
    samples = data.draw(arrivals(counter, counter.delay_ms + counter.lateness_ms))
    _, row_D, exceptions = walk_all(samples, counter)
    assert exceptions == (0, 0)
    np.testing.assert_array_equal(walk_all(sorted(samples), counter)[1], row_D)


@pytest.mark.parametrize("size", [1, 16, 4096])
def test_a_batch_of_any_size_leaves_the_same_row(size: int) -> None:
    rng = np.random.default_rng(5)
    times = START_MS + np.sort(rng.integers(0, 600_000, 5000)) + rng.integers(-900, 900, 5000)
    samples = [(int(ms), True, (256, int(256 * (rng.random() < 0.1)))) for ms in times]
    events = [(ms, amounts) for ms, _, amounts in samples]
    found, row_D, _ = walk_all(samples, COUNTER, range(size, len(samples), size))
    for n in (0, 1, 17, 2500, 4999):
        assert found[n] == counts(events, samples[n][0], COUNTER)
    np.testing.assert_array_equal(row_D, walk_all(samples, COUNTER)[1])


def test_more_than_65_536_samples_of_a_tick_count_to_the_unit() -> None:
    num = 200_001
    samples = [(START_MS + n % 1000, True, (256, 255)) for n in range(num)]
    _, row_D, _ = walk_all(samples, COUNTER)
    whole = [START_MS // 1000 * 1000, [num * 256, num * 255]]
    read = read_counts(row_D[None], COUNTER, np.array([START_MS + 2000], np.int64))
    assert (read.age_N[0], read.counts_NEH[0].tolist()) == counts(
        [(whole[0], tuple(whole[1]))], START_MS + 2000, COUNTER
    )
    assert read.counts_NEH[0, 0, 0] == num


def test_what_comes_too_late_is_added_as_what_is_left_of_it() -> None:
    on_time = [(START_MS, True, (256, 0)), (START_MS + 60_000, True, (256, 0)), (START_MS + 200_000, True, (256, 0))]
    late = (START_MS + 20_000, True, (256, 256))
    _, row_D, (num_early, _) = walk_all([*on_time, late], COUNTER)
    assert num_early == 1
    read = read_counts(row_D[None], COUNTER, np.array([START_MS + 300_000]))
    expected = counts([(ms, a) for ms, _, a in [*on_time, late]], START_MS + 300_000, COUNTER)
    assert read.age_N[0] == expected[0]
    np.testing.assert_allclose(read.counts_NEH[0], expected[1], rtol=1e-6)


def test_a_tick_for_which_there_is_no_room_is_counted_early() -> None:
    row_1D, num_dropped_1 = np.zeros((1, COUNTER.dim), np.float32), np.zeros(1, np.int64)
    known_ms = [START_MS + 1000 * n for n in (9, 3, 7, 5, 8, 10, 1)]
    num = len(known_ms)
    batch = CounterBatch(
        np.zeros(num, np.int64), np.full(num, START_MS), np.array(known_ms), np.full((num, 2), 256, np.int64)
    )
    out = np.empty((num, 2, 3), np.float32), np.empty(num, np.int64), np.empty(num, np.bool_)
    walk_counts(rules_of(COUNTER), row_1D, batch, *out, num_dropped_1)
    assert num_dropped_1[0] == num - COUNTER.num_slots  # the last one folds another, and is late itself
    read = read_counts(row_1D, COUNTER, np.array([START_MS + 60_000]))
    expected = counts([(ms, (256, 256)) for ms in known_ms], START_MS + 60_000, COUNTER)
    np.testing.assert_allclose(read.counts_NEH[0], expected[1], rtol=1e-6)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_the_disorder_every_reader_reads_the_same_and_no_count_runs_away(data: st.DataObject) -> None:
    """Records far later than the delay, as `known = "record"` lets them be: rows have no room, ticks count early."""
    counter = replace(data.draw(counters()), rates={"ctr": ("click", "shown")}, numbers=("ctr.3s", "shown.1h", "age"))
    row_1D, num_dropped_1, rules = np.zeros((1, counter.dim), np.float32), np.zeros(1, np.int64), rules_of(counter)
    samples = data.draw(arrivals(counter, data.draw(st.sampled_from([20_000, 300_000]))))
    for ms, is_counted, amounts in samples:
        known_ms = ms + data.draw(st.sampled_from([0, 700, 9_000, 60_000, 10**7])) if is_counted else NONE
        event_ms_1 = np.array([ms], np.int64)
        read = read_counts(row_1D, counter, event_ms_1)
        asked = np.repeat(row_1D, 2, axis=0), counter, np.repeat(event_ms_1, 2), np.array([1]), np.array([True])
        np.testing.assert_array_equal(read_numbers(*asked), recall.read_numbers(*asked))
        counts_1EH = np.empty((1, len(counter.count), len(counter.half_lives)), np.float32)
        age_1, early_1 = np.empty(1, np.int64), np.empty(1, np.bool_)
        batch = CounterBatch(np.zeros(1, np.int64), event_ms_1, np.array([known_ms]), np.array([amounts], np.int64))
        walk_counts(rules, row_1D, batch, counts_1EH, age_1, early_1, num_dropped_1)
        np.testing.assert_array_equal(counts_1EH, read.counts_NEH)
        assert age_1.tolist() == read.age_N.tolist()
        assert ((counts_1EH >= 0) & (counts_1EH <= len(samples))).all()


def test_a_row_that_has_expired_reads_as_one_that_never_was() -> None:
    samples = [(START_MS, True, (256, 256))]
    _, row_D, _ = walk_all(samples, COUNTER)
    until_ms = START_MS + 1000 * COUNTER.row_ttl_seconds
    rows_2D = np.stack([row_D, np.full_like(row_D, np.nan)])
    read = read_counts(rows_2D, COUNTER, np.array([until_ms, until_ms]))
    assert read.age_N.tolist() == [-1, -1]
    np.testing.assert_array_equal(read.counts_NEH[0], read.counts_NEH[1])
    assert not read.counts_NEH.any()
    fresh = walk_all([*samples, (until_ms, True, (256, 0))], COUNTER)[1]
    alone = walk_all([(until_ms, True, (256, 0))], COUNTER)[1]
    for later_ms in (0, 5000, 10**6):
        asked = np.array([until_ms + later_ms])
        ours, theirs = (read_counts(one[None], COUNTER, asked) for one in (fresh, alone))
        np.testing.assert_array_equal(ours.counts_NEH, theirs.counts_NEH)
        assert ours.age_N.tolist() == theirs.age_N.tolist()


def test_numbers_of_a_row_are_those_that_float32_holds() -> None:
    counter = replace(COUNTER, delay_ms=5000)
    samples = [(START_MS + 1000 * n, True, (256, 3)) for n in range(30)]
    row_D = walk_all(samples, counter)[1]
    end = 5 + len(counter.count) * len(counter.half_lives)
    whole = np.concatenate([row_D[:5], row_D[end:]])
    np.testing.assert_array_equal(whole, np.floor(whole))
    assert whole.min() >= 0
    assert whole.max() < 2**24


@pytest.mark.parametrize(("shift_ms", "sings"), [(0, False), (2000, True)])
def test_a_request_with_one_random_click_reads_nothing_of_itself(shift_ms: int, sings: bool) -> None:
    """With the click known two ticks earlier, at w = u // T, the canary sings: the rest of the request reads it."""
    rng, found, clicks = np.random.default_rng(1), [], []
    row_1D, num_dropped_1 = np.zeros((1, COUNTER.dim), np.float32), np.zeros(1, np.int64)
    for request in range(300):
        clicked, ms = int(rng.integers(10)), START_MS + 1_000_000 * request
        is_click_N = np.arange(10) == clicked
        times = np.full(10, ms), np.full(10, ms - shift_ms)
        amounts_NE = np.stack([np.full(10, 256), 256 * is_click_N], axis=1)
        out = np.empty((10, 2, 3), np.float32), np.empty(10, np.int64), np.empty(10, np.bool_)
        walk_counts(
            rules_of(COUNTER),
            row_1D,
            CounterBatch(np.zeros(10, np.int64), *times, amounts_NE),
            *out,
            num_dropped_1,
        )
        found.append(out[0][:, 1, 0])
        clicks.append(is_click_N)
    scores, labels = np.concatenate(found), np.concatenate(clicks)
    above = scores[labels][:, None] - scores[~labels][None]
    auc = float((above > 0).mean() + 0.5 * (above == 0).mean())
    error = np.sqrt((len(scores) + 1) / (12 * labels.sum() * (~labels).sum()))
    assert (abs(auc - 0.5) > 5 * error) == sings
    assert sings or abs(auc - 0.5) <= 3 * error
