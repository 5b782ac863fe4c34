"""Rows that remember ids: what samples read equals the oracle over all that happened, in any order and any batches."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.app.training.step.memory_step import rules_of
from springtide.kernels.cpu.memory_rows import NONE, MemoryBatch, walk
from springtide_client.memory import Memory, read_rows
from tests.support.memory_oracle import read

START_MS = 1_700_000_000_000
MEMORY = Memory(name="clicked", of="user_id", keep=("item_id", "shop_id"), num_values=2, last=3)


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    if draw(st.integers(0, 3)) == 0:
        return replace(MEMORY, last=1, is_sequence=False, delay_ms=draw(st.sampled_from([0, 2000])))
    return replace(
        MEMORY,
        last=draw(st.sampled_from([1, 2, 5])),
        distinct=draw(st.sampled_from([None, "item_id", "shop_id"])),
        ttl_ms=draw(st.sampled_from([0, 6000])),
        tick_ms=draw(st.sampled_from([1000, 3000])),
        delay_ms=draw(st.sampled_from([0, 2000])),
        lateness_ms=3000,
    )


@st.composite
def arrivals(draw: st.DrawFn, memory: Memory) -> list[tuple[int, bool, tuple[int, int]]]:
    """Samples in the order of arrival: event time, whether it is remembered, values. Disorder is within the delay."""
    most_late_ms = memory.delay_ms + min(memory.lateness_ms, memory.tick_ms) - 1
    happened_ms, samples = START_MS, []
    for _ in range(draw(st.integers(1, 60))):
        happened_ms += draw(st.sampled_from([0, 0, 100, 1000, 1500, 2500]))
        item = draw(st.sampled_from([-(2**63), -1, 0, 2**24, 2**63 - 1]))
        sample = happened_ms, draw(st.booleans()), (item, draw(st.integers(0, 1)))
        samples.append((happened_ms + draw(st.integers(0, most_late_ms)), sample))
    return [sample for _, sample in sorted(samples, key=lambda one: one[0])]


def batch_of(samples, memory: Memory) -> MemoryBatch:
    event_ms_N = np.array([ms for ms, *_ in samples], np.int64)
    known_ms_N = np.array([ms + memory.delay_ms if kept else NONE for ms, kept, _ in samples], np.int64)
    values_NK = np.array([values for *_, values in samples], np.int64)
    return MemoryBatch(np.zeros(len(samples), np.int64), event_ms_N, known_ms_N, values_NK)


def walk_all(samples, memory: Memory, cuts=()):
    """What each sample reads, the row at the end, and the counts."""
    row_1D, counts_2, found = np.zeros((1, memory.dim), np.float32), np.zeros(2, np.int64), []
    bounds = [0, *sorted(cuts), len(samples)]
    for start, stop in itertools.pairwise(bounds):
        if start == stop:
            continue
        values_NLK = np.zeros((stop - start, memory.last, memory.num_values), np.int64)
        event_ms_NL = np.zeros((stop - start, memory.last), np.int64)
        batch = batch_of(samples[start:stop], memory)
        lengths_N = walk(rules_of(memory), row_1D, batch, values_NLK, event_ms_NL, counts_2)
        for n, length in enumerate(lengths_N.tolist()):
            times, values = event_ms_NL[n, :length].tolist(), values_NLK[n, :length].tolist()
            found.append([(ms, tuple(one)) for ms, one in zip(times, values, strict=True)])
    return found, row_1D[0], counts_2.tolist()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_samples_read_what_the_oracle_says_in_any_order_and_any_batches(data: st.DataObject) -> None:
    memory = data.draw(memories())
    samples = data.draw(arrivals(memory))
    events = [(ms + memory.delay_ms, ms, values) for ms, kept, values in samples if kept]
    found, row_D, (dropped, early) = walk_all(samples, memory)
    assert early == 0
    in_batches = walk_all(samples, memory, data.draw(st.lists(st.integers(0, len(samples)), max_size=4)))
    assert in_batches[0] == found
    np.testing.assert_array_equal(in_batches[1], row_D)
    assert np.isfinite(row_D).all()
    if dropped:  # a row has room for some elements that are not settled, and says when it had none
        return
    assert found == [read(events, ms, memory) for ms, *_ in samples]
    newest_ms = max(ms for ms, *_ in samples)
    times = [newest_ms, newest_ms + 2000, newest_ms + 9000]
    rows_UD = np.stack([row_D, np.full_like(row_D, np.nan), row_D, row_D])
    wider_UD = np.pad(rows_UD, ((0, 0), (0, 3)), constant_values=7)  # as beside wider rows
    found = read_rows(wider_UD, memory, np.array([times[0], *times]))
    assert found.lengths_N[1] == 0
    for n, event_ms in ((0, times[0]), (2, times[1]), (3, times[2])):
        length = found.lengths_N[n]
        values = list(map(tuple, found.values_NLK[n, :length].tolist()))
        assert list(zip(found.event_ms_NL[n, :length].tolist(), values, strict=True)) == read(events, event_ms, memory)


def auc_of(scores_N, labels_N) -> tuple[float, float]:
    """AUC, and the standard error that it has where scores say nothing."""
    positive, negative = scores_N[labels_N > 0][:, None], scores_N[labels_N <= 0][None]
    pairs = positive.size * negative.size
    error = np.sqrt((positive.size + negative.size + 1) / (12 * pairs))
    return float(((positive > negative) + 0.5 * (positive == negative)).sum() / pairs), float(error)


def reads_since(samples, memory: Memory, shift_ms: int = 0) -> np.ndarray:
    """How many elements each sample reads of the last 30 s. `shift_ms`: by so much they are known earlier."""
    shifted = replace(memory, delay_ms=memory.delay_ms - shift_ms)
    rules, row_1D, num = rules_of(memory), np.zeros((1, memory.dim), np.float32), len(samples)
    values_NLK = np.zeros((num, memory.last, memory.num_values), np.int64)
    event_ms_NL = np.zeros((num, memory.last), np.int64)
    lengths_N = walk(rules, row_1D, batch_of(samples, shifted), values_NLK, event_ms_NL, np.zeros(2, np.int64))
    is_read_NL = np.arange(memory.last) < lengths_N[:, None]
    times_N1 = np.array([ms for ms, *_ in samples])[:, None]
    return (is_read_NL & (event_ms_NL >= times_N1 - 30_000)).sum(1)


@pytest.mark.parametrize(("shift_ms", "sings"), [(0, False), (2000, True)])
def test_a_request_with_one_random_click_reads_nothing_of_itself(shift_ms: int, sings: bool) -> None:
    """With the click known two ticks earlier, at w = u // T, the canary sings: the rest of the request reads it."""
    rng, samples = np.random.default_rng(1), []
    for request in range(300):
        clicked, ms = int(rng.integers(10)), START_MS + 40_000 * request
        samples += [(ms, place == clicked, (place, 0)) for place in range(10)]
    labels_N = np.array([kept for _, kept, _ in samples])
    auc, error = auc_of(-reads_since(samples, MEMORY, shift_ms), labels_N)
    assert (abs(auc - 0.5) > 10 * error) == sings
    assert sings or abs(auc - 0.5) <= 3 * error


@pytest.mark.parametrize(("delay_ms", "sings"), [(60_000, False), (0, True)])
def test_a_session_whose_labels_come_a_minute_later_reads_nothing_of_itself(delay_ms: int, sings: bool) -> None:
    """With too short a delay the canary sings: a session has clicks only or none, and samples read those before."""
    memory = replace(MEMORY, last=20, tick_ms=5000, delay_ms=delay_ms)
    rng, samples = np.random.default_rng(2), []
    for session in range(300):
        clicks, ms = bool(rng.integers(2)), START_MS + 100_000 * session
        samples += [(ms + 3000 * n, clicks, (n, 0)) for n in range(10)]
    labels_N = np.array([kept for _, kept, _ in samples])
    auc, error = auc_of(reads_since(samples, memory), labels_N)
    # samples of a session are alike, so the error of an AUC of nothing is that of sessions
    assert (abs(auc - 0.5) > 10 * error) == sings
    assert sings or abs(auc - 0.5) <= 3 * error


def test_a_sample_reads_neither_itself_nor_another_of_its_second() -> None:
    samples = [(START_MS + ms, True, (ms, 0)) for ms in (0, 0, 500, 999, 1000, 1999, 2000)]
    found, _, _ = walk_all(samples, MEMORY)
    assert [len(one) for one in found] == [0, 0, 0, 0, 0, 0, 3]  # the last three of the first second


def test_elements_beyond_the_room_are_counted_and_the_newest_stay() -> None:
    memory = replace(MEMORY, last=20)
    samples = [(START_MS + 40 * n, True, (n, 0)) for n in range(100)]
    _, row_D, (dropped, _) = walk_all(samples, memory)
    assert dropped > 0
    assert int(row_D[0]) == memory.capacity
    found = read_rows(row_D[None], memory, np.array([START_MS + 10_000]))
    assert found.values_NLK[0, :, 0].tolist() == list(range(80, 100))


def test_samples_that_come_too_late_are_counted() -> None:
    samples = [(START_MS + 100_000, True, (1, 0)), (START_MS, False, (2, 0))]
    assert walk_all(samples, MEMORY)[2] == [0, 1]


@pytest.mark.parametrize("capacity", [MEMORY.capacity])
def test_whole_numbers_of_a_row_are_those_that_float32_holds(capacity: int) -> None:
    samples = [(START_MS + 3000 * n, True, (-1, 2**63 - 1)) for n in range(capacity)]
    _, row_D, _ = walk_all(samples, MEMORY)
    assert row_D.max() < 2**24
    np.testing.assert_array_equal(row_D, np.floor(row_D))
