"""Impressions, clicks and orders of a torture: every partition's records in the order in which they arrive, by seed."""

# N records
import json
import time
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from springtide.kernels.cpu.hashing import hash_tuples
from springtide.stream.columns import NO_KEY
from springtide_client.array_types import Int64Array
from tests.stream.join.batch_join import Label, Log, Record

IMPRESSIONS, ACTIONS = "impressions", "actions"
NUM_PARTITIONS = {IMPRESSIONS: 3, ACTIONS: 5}
IMPRESSION, CLICK, ORDER, END = range(4)
KINDS = ("impression", "click", "order")
CLICK_MS, ORDER_MS = 6_000, 15_000  # windows
LATENESS_MS, EARLY_MS, DEDUPE_MS = 2_000, 1_000, 500
LABELS = {"click": Label("click", CLICK_MS), "order": Label("order", ORDER_MS, "count")}
NO_REQUEST, END_REQUEST = -1, 1 << 50
NUM_USERS, NUM_ITEMS = 997, 20_011

Place = tuple[str, int]  # of a partition: topic and number


class Traffic:
    """Impressions with duplicates, disorder, early and late events, late records, keys that come again or are null."""

    def __init__(self, seed: int, num: int, per_ms: float = 2.0) -> None:
        """`num` impressions, so many in a millisecond of event time; the last record is ten minutes old."""
        random = np.random.default_rng(seed)
        self.seed, self.num, span_ms = seed, num, int(num / per_ms)
        end_ms = span_ms + 4 * ORDER_MS
        self.start_ms = int(time.time() * 1000) - end_ms - 600_000
        shown_ms = np.sort(random.integers(0, span_ms, num))
        request = np.arange(num, dtype=np.int64)
        again = np.flatnonzero(random.random(num) < 0.02)  # within the dedupe time, or beyond
        request[again] = np.maximum(0, again - random.integers(1, int(4 * per_ms * DEDUPE_MS), len(again)))
        null = random.random(num) < 0.003
        pieces = [(np.full(num, IMPRESSION), np.where(null, NO_REQUEST, request), shown_ms)]
        clicked = np.flatnonzero(random.random(num) < 0.15)
        delay_ms = (random.exponential(CLICK_MS / 3, len(clicked)) - 800).astype(np.int64)
        delay_ms[random.random(len(clicked)) < 0.05] = CLICK_MS  # the last millisecond, and the one after it
        delay_ms[random.random(len(clicked)) < 0.05] = CLICK_MS + 1
        delay_ms[random.random(len(clicked)) < 0.02] = -EARLY_MS - 1
        ordered = np.flatnonzero(random.random(num) < 0.05)
        order_delay_ms = random.integers(-EARLY_MS, ORDER_MS + 5_000, len(ordered))
        for kind, rows, delays in ((CLICK, clicked, delay_ms), (ORDER, ordered, order_delay_ms)):
            twice = random.random(len(rows)) < 0.05
            rows, delays = np.concatenate([rows, rows[twice]]), np.concatenate([delays, delays[twice]])
            requests = np.where(random.random(len(rows)) < 0.002, NO_REQUEST, request[rows])
            pieces.append((np.full(len(rows), kind), requests, shown_ms[rows] + delays))
        kind_N, request_N, ms_N = (np.concatenate(column) for column in zip(*pieces, strict=True))
        arrival_N = ms_N + random.integers(0, LATENESS_MS - 500, len(ms_N))
        slow = random.random(len(ms_N)) < 0.004
        arrival_N[slow] += random.integers(0, 4 * LATENESS_MS, np.count_nonzero(slow))
        number_N = random.integers(0, 1 << 30, len(ms_N)) % np.where(kind_N == IMPRESSION, 3, 5)
        order = np.argsort(arrival_N, kind="stable")
        self._kind_N, self._request_N, self._ms_N = kind_N[order], request_N[order], ms_N[order] + self.start_ms
        self._arrival_N, self._number_N = arrival_N[order], number_N[order]
        self.last_arrival_ms = int(self._arrival_N[-1])
        self.end_ms = self.start_ms + end_ms

    @cached_property
    def rows(self) -> dict[Place, Int64Array]:
        """The records of each partition, in order."""
        is_impression_N = self._kind_N == IMPRESSION
        return {
            (topic, number): np.flatnonzero((is_impression_N == (topic == IMPRESSIONS)) & (self._number_N == number))
            for topic, count in NUM_PARTITIONS.items()
            for number in range(count)
        }

    def arrivals(self, place: Place) -> Int64Array:
        """When each record of a partition arrives, in ms after the start, ascending."""
        return self._arrival_N[self.rows[place]]

    def messages(self, place: Place, start: int, stop: int) -> Iterator[bytes]:
        """Records of a partition as JSON."""
        topic, _ = place
        for n in self.rows[place][start:stop].tolist():
            yield self._message(topic, int(self._kind_N[n]), int(self._request_N[n]), int(self._ms_N[n]), n)

    def end_message(self, topic: str) -> bytes:
        """The last record of each partition of a topic, behind all windows."""
        return self._message(topic, END, END_REQUEST, self.end_ms, END_REQUEST)

    def _message(self, topic: str, kind: int, request: int, ms: int, n: int) -> bytes:
        key = None if request == NO_REQUEST else request if n % 2 else str(request)
        if topic == ACTIONS:
            return json.dumps({"request": key, "action": (*KINDS, "end")[kind], "ts": ms}).encode()
        user, item = n * 2_654_435_761 % NUM_USERS, n * n % NUM_ITEMS
        return b'{"request":%s,"user_id":%d,"item_id":"i%d","ts":%d}' % (json.dumps(key).encode(), user, item, ms)

    def key_hash(self, request_N: Int64Array) -> list[int | None]:
        """The hash of each key; None where it is null."""
        hash_N = hash_tuples(request_N[:, None])
        return [
            None if request == NO_REQUEST else key
            for request, key in zip(request_N.tolist(), hash_N.tolist(), strict=True)
        ]

    def logs(self) -> Log:
        """All partitions as `batch_join` has them; impressions are in its topic "imp"."""
        (end,) = self.key_hash(np.array([END_REQUEST]))
        assert end != NO_KEY
        return {
            ("imp" if topic == IMPRESSIONS else topic, number): [
                *(
                    Record(KINDS[kind], key, ms)
                    for kind, key, ms in zip(
                        self._kind_N[rows].tolist(),
                        self.key_hash(self._request_N[rows]),
                        self._ms_N[rows].tolist(),
                        strict=True,
                    )
                ),
                Record("end", end, self.end_ms),
            ]
            for (topic, number), rows in self.rows.items()
        }
