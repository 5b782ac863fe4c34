from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.flow.event_time_merge import EventTimeMerge
from tests.stream.toy_columns import KINDS, A, B, columns_of


@settings(max_examples=200, deadline=None)
@given(KINDS, KINDS, st.integers(1, 6), st.integers(1, 50), st.integers(1, 50))
def test_every_row_is_returned_once_and_partitions_stay_in_order(kinds_a, kinds_b, slice_rows, pace_a, pace_b):
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


def test_a_partition_that_is_behind_holds_back_younger_rows():
    merge = EventTimeMerge(slice_rows=1, ahead_bytes=10)
    merge.add(A, columns_of(A, "rrrr", 0), 20)
    assert merge.take({B}) == []
    assert merge.partitions_ahead() == {A}
    merge.add(B, columns_of(B, "rr", 0), 5)
    order = [(part.partitions[0].number, part.offset_N.tolist()) for part in merge.take({B})]
    # beyond the last row of B, which is behind, nothing of A is handed on
    assert order == [(0, [0]), (1, [0, 1])]
    assert merge.partitions_ahead() == {A}
