"""Produce RATE events a second into one partition, from batches built beforehand.

`event_producer ADDRESS TOPIC RATE IDS NUMBERS [SECONDS]`: events of so many ids and numbers; without SECONDS for ever.

Building each record when it is sent would take a third of a core from the processes that are measured. Batches are sent
every 20 ms, because the embedded broker scans all its batches at every fetch: 100 a second would take a core.
"""

import math
import random
import socket
import struct
import sys
import time
from itertools import cycle

import crc32c

from springtide.stream.kafka.library import kafka
from tests.bench.workloads.clicks import make_clicks

TICK_SECONDS, NUM_BATCHES = 0.02, 50
# of a record batch, version 2: https://kafka.apache.org/documentation/#recordbatch
CRC, FIRST_MS, LAST_MS, COVERED = 17, 27, 35, 21


def build_batch(values: list[bytes]) -> bytearray:
    """Return a record batch of uncompressed values."""
    builder = kafka.record.default_records.DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for offset, value in enumerate(values):
        builder.append(offset, 0, None, value, [])
    return bytearray(builder.build())


def stamp(batch: bytearray, now_ms: int) -> None:
    """Set the timestamps of all records, and the checksum."""
    for place in (FIRST_MS, LAST_MS):
        struct.pack_into(">q", batch, place, now_ms)
    struct.pack_into(">I", batch, CRC, crc32c.crc32c(memoryview(batch)[COVERED:]))


def request_of(topic: str, batch: bytearray, number: int) -> bytes:
    """Return a Produce request, version 3, acks = 1."""
    name = topic.encode()
    head = struct.pack(">hhih", 0, 3, number, -1) + struct.pack(">hhi", -1, 1, 30_000)
    head += struct.pack(f">ih{len(name)}siii", 1, len(name), name, 1, 0, len(batch))
    return struct.pack(">i", len(head) + len(batch)) + head + batch


def flipped(click: bytes) -> bytes:
    """Return the click with the other label."""
    head, _, label = click.rpartition(b":")
    return head + (b":1}" if label == b"0}" else b":0}")


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (piece := connection.recv(size - len(data))):
            raise ConnectionError("the broker closed the connection")
        data += piece
    return data


def error_of(answer: bytes, topic: str) -> int:
    """Return the error code of a Produce response for one partition; 0 = none."""
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic.encode()) + 4 + 4)
    return int(code)


class BatchSender:
    """Sends finished record batches to partition 0 and waits for each response; no thread, no queue."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self._topic, self._number = topic, 0
        self._connection = socket.create_connection((host, int(port)))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "BatchSender":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, batch: bytearray) -> None:
        stamp(batch, time.time_ns() // 1_000_000)
        self._connection.sendall(request_of(self._topic, batch, self._number))
        self._number += 1
        (size,) = struct.unpack(">i", receive(self._connection, 4))
        if code := error_of(receive(self._connection, size), self._topic):
            sys.exit(f"the broker refused a batch: error {code}")


def main() -> None:
    address, topic = sys.argv[1:3]
    rate, num_ids, num_numbers = map(int, sys.argv[3:6])
    seconds = float(sys.argv[6]) if len(sys.argv) > 6 else math.inf
    a_tick = int(rate * TICK_SECONDS)
    clicks = make_clicks(a_tick * NUM_BATCHES, seed=1, num_categorical=num_ids, num_dense=num_numbers)
    chance = random.Random(0)
    # once a stream with constant labels is learned, its rows no longer change: each batch comes with its labels or with
    # the opposite ones, by chance. By turns would be a stream that no model can follow
    of_labels = [[click if chance.random() < 0.5 else flipped(click) for click in clicks]]
    of_labels.append([flipped(click) for click in of_labels[0]])
    starts = range(0, len(clicks), a_tick)
    batches = [[build_batch(values[start : start + a_tick]) for values in of_labels] for start in starts]
    with BatchSender(address, topic) as sender:
        sender.send(batches[0][0])
        print("sending", flush=True)
        due = time.monotonic()
        end = due + seconds
        for either in cycle(batches):
            if due >= end:
                return
            due += TICK_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
            sender.send(chance.choice(either))


if __name__ == "__main__":
    main()
