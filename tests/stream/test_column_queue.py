"""Partitions are merged by event time, and the queue to the trainer is bounded."""

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.column_queue import ColumnQueue, EventTimeMerge, columns_bytes
from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.errors import StreamError
from springtide.stream.positions import Partition
from springtide_client.schema import Schema
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


def columns_with(*users: int):
    messages = [json.dumps({"click": 1, "user": user}).encode() for user in users]
    raw = RawRecords.from_messages(Partition("clicks", 0), messages)
    return Decoder(Schema(labels=("click",), categorical=("user",))).decode(raw, 0)


X, Y, Z = columns_with(1), columns_with(2, 3), columns_with(4)
ENOUGH = 1 << 20


def test_columns_are_taken_in_order_up_to_the_requested_bytes():
    queue = ColumnQueue(ENOUGH)
    for columns in (X, Y, Z):
        queue.put(columns)
    assert queue.num_bytes == sum(map(columns_bytes, (X, Y, Z)))
    assert queue.take(columns_bytes(X) + 1, 0) == [X, Y]
    assert (len(queue), queue.num_bytes) == (1, columns_bytes(Z))
    assert queue.take(ENOUGH, 0) == [Z]
    assert queue.take(ENOUGH, 0) == []


def test_put_blocks_while_the_queue_is_full():
    queue = ColumnQueue(columns_bytes(X))
    queue.put(X)
    putting = threading.Thread(target=queue.put, args=(Y,))
    putting.start()
    assert len(queue) == 1
    assert queue.take(1, 0) == [X]
    assert queue.take(1, 10) == [Y]  # larger than the queue: taken because it is empty
    putting.join(300)
    assert not putting.is_alive()


def test_the_end_releases_blocked_puts_and_takes():
    full, empty = ColumnQueue(1), ColumnQueue(1)
    full.put(X)
    taken = []
    waiting = [
        threading.Thread(target=full.put, args=(Y,)),
        threading.Thread(target=lambda: taken.append(empty.take(1, 60))),
    ]
    for thread in waiting:
        thread.start()
    full.end()
    empty.end()
    for thread in waiting:
        thread.join(300)
        assert not thread.is_alive()
    assert taken == [[]]


def test_the_error_is_raised_after_the_queued_columns_and_on_every_later_take():
    queue = ColumnQueue(ENOUGH)
    queue.put(X)
    queue.end(StreamError("the broker refuses us"))
    queue.end(StreamError("another"))
    assert queue.take(ENOUGH, 0) == [X]
    for _ in range(2):
        with pytest.raises(StreamError, match="refuses us"):
            queue.take(ENOUGH, 0)
