# N rows
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from springtide_client.features import Features, IdStrings, Ragged

from stream.batcher import Batcher
from stream.columns import Columns, DeadLetter
from stream.flow.event_time_merge import EventTimeMerge, slice_columns
from stream.positions import Partition

A, B = Partition("clicks", 0), Partition("clicks", 1)
KINDS = st.lists(st.sampled_from("rrrdg"), max_size=40)  # a row, a dead letter, a gap (compacted, control)


def columns_of(partition, kinds, begin, *, event_ms=None, topic_id="x"):
    """Columns of records that stand at begin, begin + 1, ...; row values are their offsets."""
    rows = [begin + i for i, kind in enumerate(kinds) if kind == "r"]
    dead = [begin + i for i, kind in enumerate(kinds) if kind == "d"]
    offset_N = np.array(rows, np.int64)
    lengths = offset_N % 3
    return Columns(
        features=Features(
            offset_N[:, None] * 2 + partition.number,
            (Ragged(np.repeat(offset_N, lengths), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),),
            offset_N[:, None].astype(np.float32),
        ),
        labels_NL=np.zeros((len(rows), 1), np.float32),
        weights_N=np.ones(len(rows), np.float32),
        event_ms_N=offset_N + 1000 if event_ms is None else np.array([event_ms(o) for o in rows], np.int64),
        record_ms_N=offset_N,
        partition_N=np.zeros(len(rows), np.int32),
        offset_N=offset_N,
        partitions=(partition,),
        dead_letters=tuple(DeadLetter(partition, offset, "empty", "", None, None, 0) for offset in dead),
        end_offsets={partition: begin + len(kinds)},
        id_strings=IdStrings(np.zeros(len(rows), np.uint16), offset_N, [f"{partition.number}-{o}" for o in rows]),
        topic_ids={partition: topic_id},
    )


def cut_into_columns(partition, kinds, cuts):
    """The same records, polled in pieces."""
    bounds = sorted({0, len(kinds), *(cut % (len(kinds) + 1) for cut in cuts)})
    return [columns_of(partition, kinds[a:b], a) for a, b in itertools.pairwise(bounds)]


def drain(batcher):
    return list(iter(batcher.take, None))


def rows(batch):
    return batch.features.categorical_NC[:, 0].tolist()


@settings(max_examples=300, deadline=None)
@given(KINDS, st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)), st.integers(1, 7))
def test_batches_are_the_same_however_the_polls_were_cut(kinds, cuts, other_cuts, batch_size):
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


@settings(max_examples=300, deadline=None)
@given(
    KINDS,
    KINDS,
    st.lists(st.integers(0, 60)),
    st.lists(st.integers(0, 60)),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_positions_pass_exactly_what_was_learned_or_buried(kinds_a, kinds_b, cuts_a, cuts_b, batch_size, random):
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
    learned, buried, told = {A: [], B: []}, {A: [], B: []}, set()
    for batch in batches:
        assert len(batch) <= batch_size
        for text in itertools.chain.from_iterable(id_strings.strings for id_strings in batch.id_strings):
            told.add(text)
        for value in rows(batch):
            partition = B if value % 2 else A
            learned[partition].append(value // 2)
            assert f"{partition.number}-{value // 2}" in told
        for letter in batch.dead_letters:
            buried[letter.partition].append(letter.offset)
        for partition, position in batch.positions.items():
            assert position >= positions[partition]
            positions[partition] = position
            assert batch.topic_ids[partition] == "x"
        for partition, kinds in ((A, kinds_a), (B, kinds_b)):
            passed = kinds[: positions[partition]]
            assert learned[partition] == [offset for offset, kind in enumerate(passed) if kind == "r"]
            assert buried[partition] == [offset for offset, kind in enumerate(passed) if kind == "d"]
    for partition, kinds in ((A, kinds_a), (B, kinds_b)):
        assert positions[partition] == len(kinds)


def test_a_short_batch_leaves_when_its_oldest_sample_has_waited():
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


def test_a_topic_made_anew_follows_the_old_one_in_one_batch():
    batcher = Batcher(4, float("inf"))
    batcher.add(columns_of(A, "rrd", 97, topic_id="old"))
    batcher.add(columns_of(A, "drrr", 0, topic_id="new"))
    batch = batcher.take()
    assert rows(batch) == [194, 196, 2, 4]
    assert batch.positions == {A: 3}
    assert batch.topic_ids == {A: "new"}
    assert [letter.offset for letter in batch.dead_letters] == [99, 0]


@pytest.mark.parametrize(("size", "wait"), [(0, 1.0), (4, -1.0), (4, float("nan"))])
def test_settings_that_cannot_be_are_refused(size, wait):
    with pytest.raises(ValueError, match="must be at least"):
        Batcher(size, wait)


@settings(max_examples=200, deadline=None)
@given(KINDS, KINDS, st.integers(1, 6), st.integers(1, 50), st.integers(1, 50))
def test_a_merge_hands_on_everything_once_and_keeps_partitions_in_step(kinds_a, kinds_b, slice_rows, pace_a, pace_b):
    merge = EventTimeMerge(slice_rows=slice_rows)
    for partition, kinds, pace in ((A, kinds_a, pace_a), (B, kinds_b, pace_b)):
        for start in range(0, len(kinds), 9):
            columns = columns_of(partition, kinds[start : start + 9], start, event_ms=lambda o, pace=pace: o * pace)
            merge.add(partition, columns, 1)
    taken = merge.take(())
    assert len(merge) == 0
    for partition, kinds in ((A, kinds_a), (B, kinds_b)):
        own = [columns for columns in taken if columns.partitions == (partition,)]
        assert [o for part in own for o in part.offset_N] == [o for o, kind in enumerate(kinds) if kind == "r"]
        assert [d.offset for part in own for d in part.dead_letters] == [
            o for o, kind in enumerate(kinds) if kind == "d"
        ]
        assert [part.end_offsets[partition] for part in own] == sorted(part.end_offsets[partition] for part in own)
        if own:
            assert own[-1].end_offsets == {partition: len(kinds)}
    assert all(len(columns) <= 9 for columns in taken)


def test_a_merge_waits_for_a_partition_that_is_behind():
    merge = EventTimeMerge(slice_rows=1, ahead_bytes=10)
    merge.add(A, columns_of(A, "rrrr", 0), 20)
    assert merge.take({B}) == []
    assert merge.partitions_ahead() == {A}
    merge.add(B, columns_of(B, "rr", 0), 5)
    order = [(part.partitions[0].number, part.offset_N.tolist()) for part in merge.take({B})]
    # beyond the last row of B, which is behind, nothing of A is handed on
    assert order == [(0, [0]), (1, [0, 1])]
    assert merge.partitions_ahead() == {A}


def test_slices_of_columns_join_to_the_whole():
    whole = columns_of(A, "grrdrrgd", 5)
    first, second = slice_columns(whole, 0, 3), slice_columns(whole, 3, 4)
    assert first.end_offsets == {A: 10}
    assert second.end_offsets == {A: 13}
    assert [letter.offset for letter in first.dead_letters] == [8]
    assert [letter.offset for letter in second.dead_letters] == [12]
    assert first.offset_N.tolist() + second.offset_N.tolist() == [6, 7, 9, 10]


def test_from_enough_rows_on_a_batch_is_given_at_once():
    batcher = Batcher(4, 10.0, clock=lambda: 0.0, min_batch_size=2)
    batcher.add(columns_of(A, "r", 0))
    assert (batcher.take(), batcher.seconds_until_due()) == (None, 10.0)
    batcher.add(columns_of(A, "rr", 1))
    assert batcher.seconds_until_due() == 0.0
    assert rows(batcher.take()) == [0, 2, 4]
    batcher.add(columns_of(A, "rrrrrr", 3))
    assert [len(batch) for batch in drain(batcher)] == [4, 2]


def test_batches_that_may_wait_for_ever_are_whole_whatever_is_enough():
    batcher = Batcher(4, float("inf"), min_batch_size=1)
    batcher.add(columns_of(A, "rrr", 0))
    assert (batcher.take(), batcher.seconds_until_due()) == (None, None)
