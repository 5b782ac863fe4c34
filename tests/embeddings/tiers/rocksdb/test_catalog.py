"""The histogram of last-seen counts by feature and time, never too many."""

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from springtide.embeddings.tiers.rocksdb.catalog import MAX_BUCKETS, LastSeenHistogram

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 2000)), min_size=1, max_size=50)


def histogram_of(rows: list[tuple[int, int]]) -> LastSeenHistogram:
    histogram = LastSeenHistogram()
    for start in range(0, len(rows), 7):
        part = rows[start : start + 7]
        histogram.add(np.array([f for f, _ in part], np.uint16), np.array([t for _, t in part], np.int64))
    return histogram


@given(ROWS, st.dictionaries(st.integers(0, 4), st.integers(0, 2500)))
def test_rows_below_a_cutoff_are_counted_exactly_while_buckets_are_narrow(
    rows: list[tuple[int, int]], cutoffs: dict[int, int]
) -> None:
    below = sum(max(0, time) < cutoffs.get(feature, -1) for feature, time in rows)
    assert histogram_of(rows).num_below(cutoffs) == below


@given(ROWS, st.floats(0.01, 1))
def test_about_the_given_fraction_lies_below_the_quantile(rows: list[tuple[int, int]], fraction: float) -> None:
    time = histogram_of(rows).quantile(fraction)
    assert time is not None
    times = np.maximum(0, [t for _, t in rows])
    assert np.count_nonzero(times < time) >= fraction * len(rows) - 1e-9
    assert np.count_nonzero(times < time - 1) < fraction * len(rows) + 1e-9


def test_any_range_of_times_fits_and_no_row_is_counted_too_early() -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(0, 20, 100_000).astype(np.uint16)
    times = 1_700_000_000_000 + rng.integers(0, 86_400_000, 100_000)
    histogram = LastSeenHistogram()
    for start in range(0, 100_000, 10_000):
        histogram.add(features[start : start + 10_000], times[start : start + 10_000])
    assert len(histogram._buckets_M) <= MAX_BUCKETS
    cutoff = 1_700_000_000_000 + 43_200_000
    below = int(np.count_nonzero((times < cutoff) & (features == 3)))
    assert 0.95 * below <= histogram.num_below({3: cutoff}) <= below
    quantile = LastSeenHistogram.merged([histogram, histogram]).quantile(0.25)
    assert quantile is not None
    assert abs(np.count_nonzero(times < quantile) / 100_000 - 0.25) < 0.02


def test_without_rows_there_is_no_quantile() -> None:
    assert LastSeenHistogram().quantile(0.5) is None
    assert LastSeenHistogram.merged([]).quantile(0.5) is None


def test_it_can_be_read_while_rows_are_added() -> None:
    histogram, ended = LastSeenHistogram(), threading.Event()

    def add() -> None:
        generator = np.random.default_rng(1)
        while not ended.is_set():
            histogram.add(np.zeros(100, np.uint16), generator.integers(0, 10**9, 100))

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(300):
            merged = LastSeenHistogram.merged([histogram])
            assert merged.num_rows == merged.num_below({0: 1 << 44})
            histogram.num_below({0: 500_000})
    finally:
        ended.set()
        thread.join()
