import json
import threading

import pytest

from springtide.stream.decode.decoder import Decoder
from springtide.stream.errors import StreamError
from springtide.stream.flow.column_queue import ColumnQueue, columns_bytes
from springtide.stream.positions import Partition
from springtide.stream.records import RawRecords
from springtide_client.schema import Schema


def columns_of(*users: int):
    messages = [json.dumps({"click": 1, "user": user}).encode() for user in users]
    raw = RawRecords.from_messages(Partition("clicks", 0), messages)
    return Decoder(Schema(labels=("click",), categorical=("user",))).decode(raw, 0)


A, B, C = columns_of(1), columns_of(2, 3), columns_of(4)
ENOUGH = 1 << 20


def test_columns_are_taken_in_order_up_to_the_requested_bytes():
    queue = ColumnQueue(ENOUGH)
    for columns in (A, B, C):
        queue.put(columns)
    assert queue.num_bytes == sum(map(columns_bytes, (A, B, C)))
    assert queue.take(columns_bytes(A) + 1, 0) == [A, B]
    assert (len(queue), queue.num_bytes) == (1, columns_bytes(C))
    assert queue.take(ENOUGH, 0) == [C]
    assert queue.take(ENOUGH, 0) == []


def test_put_blocks_while_the_queue_is_full():
    queue = ColumnQueue(columns_bytes(A))
    queue.put(A)
    putting = threading.Thread(target=queue.put, args=(B,))
    putting.start()
    assert len(queue) == 1
    assert queue.take(1, 0) == [A]
    assert queue.take(1, 10) == [B]  # larger than the queue: taken because it is empty
    putting.join(300)
    assert not putting.is_alive()


def test_the_end_releases_blocked_puts_and_takes():
    full, empty = ColumnQueue(1), ColumnQueue(1)
    full.put(A)
    taken = []
    waiting = [
        threading.Thread(target=full.put, args=(B,)),
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
    queue.put(A)
    queue.end(StreamError("the broker refuses us"))
    queue.end(StreamError("another"))
    assert queue.take(ENOUGH, 0) == [A]
    for _ in range(2):
        with pytest.raises(StreamError, match="refuses us"):
            queue.take(ENOUGH, 0)
