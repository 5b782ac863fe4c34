import dataclasses
import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.batcher import BEHIND_WAIT_SECONDS, GROWTH, REQUEST_WAIT_SECONDS, Batcher, BatchSize
from springtide.stream.column_queue import EventTimeMerge
from springtide_client.keys import MISSING_ID
from tests.stream.toy_columns import KINDS, RECORDS_OF_ROWS, A, B, columns_of, cut_into_columns, num_rows_of


def sizes_of_a_stream(size: BatchSize, num: int) -> list[int]:
    sizes: list[int] = []
    learned = 0
    while learned < num:
        sizes.append(size.after(learned))
        learned += sizes[-1]
    return sizes


def test_batches_grow_with_what_was_learned_in_powers_of_two():
    sizes = sizes_of_a_stream(BatchSize(4096, 16), 1_000_000)
    assert sorted(set(sizes)) == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert all(size <= after for size, after in pairwise(sizes))
    learned = 0
    for size in sizes:
        assert size == 16 or size * GROWTH <= learned
        learned += size
    assert sum(size < 4096 for size in sizes) == 9 * GROWTH  # 2 * GROWTH of 16, and GROWTH of each size up to 2048


def test_a_short_log_is_learned_in_small_steps():
    assert max(sizes_of_a_stream(BatchSize(4096, 16), 20_000)) == 128


@pytest.mark.parametrize(
    ("most", "fewest", "sizes"),
    [
        (4096, 0, {4096}),  # fixed
        (4096, 8192, {4096}),
        (8, 16, {8}),
        (100, 1, {1, 2, 4, 8, 16, 32, 64, 100}),
        (100, 20, {20, 32, 64, 100}),
    ],
)
def test_sizes_stay_between_the_fewest_and_the_most(most, fewest, sizes):
    assert set(sizes_of_a_stream(BatchSize(most, fewest), 50_000)) == sizes


@pytest.mark.parametrize("growth", [1, 32])
def test_a_batch_has_at_most_a_part_of_what_was_learned_before(growth):
    sizes = sizes_of_a_stream(BatchSize(4096, 16, growth), 300_000)
    learned = 0
    for size in sizes:
        assert size == 16 or size * growth <= learned
        learned += size
    assert sum(size < 4096 for size in sizes) == 9 * growth


@pytest.mark.parametrize(("most", "fewest"), [(0, 16), (16, -1)])
def test_invalid_sizes_are_refused(most, fewest):
    with pytest.raises(ValueError, match="must be at least"):
        BatchSize(most, fewest)


def drain(batcher):
    return list(iter(batcher.take, None))


def rows(batch):
    return batch.features.categorical_NC[:, 0].tolist()


@settings(max_examples=300, deadline=None)
@given(KINDS, st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)), st.integers(1, 7))
def test_batches_do_not_depend_on_how_polls_split_the_stream(kinds, cuts, other_cuts, batch_size):
    def batches(cuts):
        batcher = Batcher(batch_size, float("inf"))
        found = []
        for columns in cut_into_columns(A, kinds, cuts):
            batcher.add(columns)
            found += drain(batcher)
        found += list(iter(batcher.flush, None))
        return [batch for batch in found if len(batch)]

    ours, others = batches(cuts), batches(other_cuts)
    assert [rows(batch) for batch in ours] == [rows(batch) for batch in others]
    assert all(len(batch) == batch_size for batch in ours[:-1])
    for one, other in zip(ours, others, strict=True):
        for a, b in zip(one.features.lists, other.features.lists, strict=True):
            np.testing.assert_array_equal(a.ids_M, b.ids_M)
            np.testing.assert_array_equal(a.offsets, b.offsets)
        np.testing.assert_array_equal(one.event_ms_N, other.event_ms_N)
        assert one.watermarks == other.watermarks


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(0, 20),
    st.integers(0, 12_000),
)
def test_batches_grow_alike_wherever_reading_begins_again(cuts, other_cuts, num_before_restart, num_learned):
    def batches(cuts, first, num_learned, end):
        batcher = Batcher(100, float("inf"), min_batch_size=3, num_learned=num_learned)
        lengths = itertools.cycle(cuts)
        while first < end:
            length = min(next(lengths), end - first)
            batcher.add(columns_of(A, "r" * length, first))
            first += length
            yield from drain(batcher)
        yield from iter(batcher.flush, None)

    whole = [rows(batch) for batch in batches(cuts, 0, num_learned, 2000)]
    ours = [rows(batch) for batch in itertools.islice(batches(cuts, 0, num_learned, 2000), num_before_restart)]
    first = sum(map(len, ours))
    ours += [rows(batch) for batch in batches(other_cuts, first, num_learned + first, 2000)]
    assert ours == whole
    assert [len(batch) for batch in whole[:2]] == [BatchSize(100, 3).after(num_learned + n) for n in (0, len(whole[0]))]


@settings(max_examples=300, deadline=None)
@given(
    KINDS,
    KINDS,
    st.lists(st.integers(0, 60)),
    st.lists(st.integers(0, 60)),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_positions_pass_exactly_the_learned_rows_and_dead_letters(kinds_a, kinds_b, cuts_a, cuts_b, batch_size, random):
    queues = [cut_into_columns(A, kinds_a, cuts_a), cut_into_columns(B, kinds_b, cuts_b)]
    now = [0.0]
    batcher = Batcher(batch_size, 1.0, clock=lambda: now[0])
    batches = []
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])
        batcher.add(queue.pop(0))
        now[0] += random.choice([0.0, 0.6])
        batches += drain(batcher)
    batches += list(iter(batcher.flush, None))
    assert batcher.is_empty
    assert batcher.take() is None

    positions = {A: 0, B: 0}
    learned, dead, strings = {A: [], B: []}, {A: [], B: []}, set()
    for batch in batches:
        assert len(batch) <= batch_size
        strings.update(itertools.chain.from_iterable(part.strings for part in batch.id_strings))
        for value in rows(batch):
            partition = B if value % 2 else A
            learned[partition].append(value // 2)
            assert f"{partition.number}-{value // 2}" in strings
        for letter in batch.dead_letters:
            dead[letter.partition].append(letter.offset)
        for partition, position in batch.positions.items():
            assert position >= positions[partition]
            positions[partition] = position
            assert batch.topic_ids[partition] == "x"
        for partition, kinds in ((A, kinds_a), (B, kinds_b)):
            passed = kinds[: positions[partition]]
            assert learned[partition] == [offset for offset, kind in enumerate(passed) if kind == "r"]
            assert dead[partition] == [offset for offset, kind in enumerate(passed) if kind == "d"]
    for partition, kinds in ((A, kinds_a), (B, kinds_b)):
        assert positions[partition] == len(kinds)


@settings(max_examples=300, deadline=None)
@given(
    RECORDS_OF_ROWS,
    RECORDS_OF_ROWS,
    st.lists(st.integers(0, 60)),
    st.lists(st.integers(0, 60)),
    st.integers(1, 7),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_rows_of_one_record_are_learned_in_one_batch_and_positions_pass_exactly_them(
    kinds_a, kinds_b, cuts_a, cuts_b, batch_size, slice_rows, random
):
    """Through the merge of partitions by event time, and the batcher."""
    queues = [cut_into_columns(A, kinds_a, cuts_a), cut_into_columns(B, kinds_b, cuts_b)]
    merge, batcher, batches = EventTimeMerge(slice_rows=slice_rows), Batcher(batch_size, float("inf")), []
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])
        columns = queue.pop(0)
        merge.add(columns.partitions[0], columns, 1)
        for part in merge.take([A, B] if all(queues) else []):
            batcher.add(part)
            batches += drain(batcher)
    batches += list(iter(batcher.flush, None))
    positions, learned = {A: 0, B: 0}, {A: [], B: []}
    for batch in batches:
        values = rows(batch)
        assert len(batch) <= batch_size or len(set(values)) == 1
        for value in values:
            learned[B if value % 2 else A].append(value // 2)
        positions |= batch.positions
        for partition, kinds in ((A, kinds_a), (B, kinds_b)):
            # a trainer that dies here goes on at the position: nothing is learned twice, nothing is left out
            passed = enumerate(kinds[: positions[partition]])
            assert learned[partition] == [offset for offset, kind in passed for _ in range(num_rows_of(kind))]
    assert positions == {A: len(kinds_a), B: len(kinds_b)}


@settings(max_examples=100, deadline=None)
@given(RECORDS_OF_ROWS, st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)), st.integers(1, 7))
def test_batches_of_records_with_several_rows_do_not_depend_on_polls_either(kinds, cuts, other_cuts, batch_size):
    def batches(cuts):
        batcher, found = Batcher(batch_size, float("inf")), []
        for columns in cut_into_columns(A, kinds, cuts):
            batcher.add(columns)
            found += drain(batcher)
        return [rows(batch) for batch in [*found, *iter(batcher.flush, None)] if len(batch)]

    assert batches(cuts) == batches(other_cuts)


def test_a_short_batch_is_due_when_its_oldest_sample_has_waited_long_enough():
    now = [10.0]
    batcher = Batcher(100, 0.2, clock=lambda: now[0])
    assert batcher.seconds_until_due() is None
    batcher.add(columns_of(A, "rr", 0))
    now[0] += 0.15
    batcher.add(columns_of(A, "r", 2))
    assert batcher.take() is None
    assert batcher.seconds_until_due() == pytest.approx(0.05)
    now[0] += 0.05
    assert batcher.seconds_until_due() == pytest.approx(0.0)
    assert len(batcher.take()) == 3
    assert len(batcher) == 0


def test_columns_without_rows_move_the_positions_at_once():
    batcher = Batcher(10, float("inf"))
    batcher.add(columns_of(A, "dgd", 0))
    batch = batcher.take()
    assert len(batch) == 0
    assert batch.positions == {A: 3}
    assert [letter.offset for letter in batch.dead_letters] == [0, 2]
    assert batch.features.categorical_NC.shape == (0, 1)


def test_columns_without_rows_wait_for_the_rows_before_them():
    batcher = Batcher(10, float("inf"))
    batcher.add(columns_of(A, "rr", 0))
    batcher.add(columns_of(A, "d", 2))
    assert batcher.take() is None
    batch = batcher.flush()
    assert (rows(batch), batch.positions) == ([0, 2], {A: 3})
    assert [letter.offset for letter in batch.dead_letters] == [2]


def test_a_batch_may_span_a_topic_and_its_re_creation():
    batcher = Batcher(4, float("inf"))
    batcher.add(columns_of(A, "rrd", 97, topic_id="old"))
    batcher.add(columns_of(A, "drrr", 0, topic_id="new"))
    batch = batcher.take()
    assert rows(batch) == [194, 196, 2, 4]
    assert batch.positions == {A: 3}
    assert batch.topic_ids == {A: "new"}
    assert [letter.offset for letter in batch.dead_letters] == [99, 0]


@pytest.mark.parametrize(("size", "wait"), [(0, 1.0), (4, -1.0), (4, float("nan"))])
def test_invalid_settings_are_refused(size, wait):
    with pytest.raises(ValueError, match="must be at least"):
        Batcher(size, wait)


def test_without_a_wait_a_batch_is_what_is_there():
    batcher = Batcher(4, 0.0, clock=lambda: 0.0)
    batcher.add(columns_of(A, "dr", 0))
    assert batcher.seconds_until_due() == 0.0
    assert rows(batcher.take()) == [2]
    batcher.add(columns_of(A, "rrrrrr", 2))
    assert [len(batch) for batch in drain(batcher)] == [4, 2]


def test_without_an_end_of_the_wait_only_full_batches_are_due():
    batcher = Batcher(4, float("inf"), min_batch_size=2, num_learned=1_000)
    batcher.add(columns_of(A, "rrr", 0))
    assert (batcher.take(), batcher.seconds_until_due()) == (None, None)


@pytest.mark.parametrize("wait", [0.0, 10.0])
def test_behind_a_batch_waits_for_a_full_one_and_not_for_ever(wait):
    now = [0.0]
    batcher = Batcher(4, wait, clock=lambda: now[0], min_batch_size=1, num_learned=1_000)
    batcher.is_behind = True
    batcher.add(columns_of(A, "rr", 0))
    assert (batcher.take(), batcher.seconds_until_due()) == (None, wait or BEHIND_WAIT_SECONDS)
    batcher.add(columns_of(A, "rrr", 2))
    assert [len(batch) for batch in drain(batcher)] == [4]
    now[0] += 10.0
    assert [len(batch) for batch in drain(batcher)] == [1]
    batcher.is_behind = False
    batcher.add(columns_of(A, "r", 5))
    assert [len(batch) for batch in drain(batcher)] == ([] if wait else [1])


def requests_of(columns, requests):
    """The columns with a request for each row by its offset."""
    request_N = np.array([requests[offset % len(requests)] for offset in columns.offset_N.tolist()], np.int64)
    return dataclasses.replace(columns, request_N=request_N)


REQUESTS = st.lists(st.tuples(st.sampled_from([1, 2, 3, MISSING_ID]), st.integers(1, 6)), min_size=1, max_size=12).map(
    lambda runs: [request for request, num in runs for _ in range(num)]
)


@settings(max_examples=300, deadline=None)
@given(RECORDS_OF_ROWS, REQUESTS, st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)), st.integers(1, 7))
def test_no_batch_divides_a_request_however_polls_split_the_stream(kinds, requests, cuts, other_cuts, batch_size):
    def batches(cuts):
        batcher = Batcher(batch_size, float("inf"), by_request=True, min_batch_size=2, growth=1)
        found = []
        for columns in cut_into_columns(A, kinds, cuts):
            batcher.add(requests_of(columns, requests))
            found += drain(batcher)
        found += list(iter(batcher.flush, None))
        return [batch for batch in found if len(batch)]

    ours = batches(cuts)
    assert [rows(batch) for batch in ours] == [rows(batch) for batch in batches(other_cuts)]
    for one, other in pairwise(ours):
        is_divided = one.request_N[-1] == other.request_N[0] != MISSING_ID
        assert not is_divided or len(set(one.request_N[-batch_size:].tolist())) == 1  # it is too long
    for batch in ours:
        if len(batch) > batch_size:  # one record
            assert len(set(batch.features.categorical_NC[:, 0].tolist())) == 1


def test_the_newest_request_waits_for_the_rest_of_it():
    now = [0.0]
    batcher = Batcher(100, 0.0, clock=lambda: now[0], by_request=True)
    requests = [1, 1, 2, 2, 2, 2, 3]
    batcher.add(requests_of(columns_of(A, "rrrr", 0), requests))
    assert batcher.take().request_N.tolist() == [1, 1]
    assert batcher.take() is None
    assert batcher.seconds_until_due() == pytest.approx(REQUEST_WAIT_SECONDS)
    batcher.add(requests_of(columns_of(A, "rr", 4), requests))
    now[0] += 0.9 * REQUEST_WAIT_SECONDS
    assert batcher.take() is None
    now[0] += 0.2 * REQUEST_WAIT_SECONDS
    assert batcher.take().request_N.tolist() == [2, 2, 2, 2]
    assert batcher.is_empty
