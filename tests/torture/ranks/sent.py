"""What was sent to each partition, in a plain list: how often and when last each id must have been counted."""

import json
from collections import Counter
from typing import NamedTuple

import numpy as np

from springtide.stream.positions import Partition
from springtide_client.format.records import StreamPosition
from springtide_client.keys import encode_id

NUM_USERS, NUM_ITEMS, BAD_EVERY = 200, 60, 97
START_MS = 1_700_000_000_000
BAD = b"{ not json"
ITEM_IDS = {f"item-{number}": encode_id(f"item-{number}")[0] for number in range(NUM_ITEMS)}

Row = tuple[int, int]  # count, last seen in ms
Rows = dict[tuple[int, int], Row]  # by feature and id: users are feature 0, items 1


class Click(NamedTuple):
    """A record that can be learned: `items` are its item and those before it; `ts` its event time in ms."""

    user: int
    items: list[str]
    ts: int


class Sent:
    """The records of one topic. Every record is a function of the seed and of how many were sent before it."""

    def __init__(self, seed: int, num_partitions: int) -> None:
        self._random = np.random.default_rng(seed)
        self.num_records = 0
        # by partition, in order of offsets; None for a malformed record
        self.clicks: list[list[Click | None]] = [[] for _ in range(num_partitions)]

    def next_value(self, partition: int) -> bytes:
        """Return the next record of a partition."""
        number, self.num_records = self.num_records, self.num_records + 1
        if number % BAD_EVERY == BAD_EVERY - 1:
            self.clicks[partition].append(None)
            return BAD
        user, ts = int(self._random.integers(NUM_USERS)), START_MS + 100 * number
        items = [f"item-{item}" for item in self._random.zipf(1.3, self._random.integers(1, 5)) % NUM_ITEMS]
        self.clicks[partition].append(Click(user, items, ts))
        fields = {"user_id": user, "item_id": items[0], "last_items": items[1:], "age": number % 80, "ts": ts}
        return json.dumps(fields | {"click": int(self._random.random() < 0.3)}).encode()

    def ends(self) -> dict[int, int]:
        """Return the number of records of each partition that has some."""
        return {partition: len(clicks) for partition, clicks in enumerate(self.clicks) if clicks}


class Expected:
    """Counts what was sent up to the positions of a version; goes on from the version before where it can."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent
        self._clear()

    def _clear(self) -> None:
        self.num_samples = self.num_bad = 0
        self.rows: Rows = {}
        self._offsets: Counter[int] = Counter()

    def advance(self, positions: dict[str, StreamPosition]) -> None:
        """Let `rows`, `num_samples` and `num_bad` be those of a version at these positions."""
        offsets = {Partition.parse(name).number: position["offset"] for name, position in positions.items()}
        if any(offsets.get(partition, 0) < offset for partition, offset in self._offsets.items()):
            self._clear()  # a power loss has moved the log back
        for partition, offset in offsets.items():
            for click in self._sent.clicks[partition][self._offsets[partition] : offset]:
                self._count(click)
            self._offsets[partition] = offset

    def _count(self, click: Click | None) -> None:
        if click is None:
            self.num_bad += 1
            return
        self.num_samples += 1
        for key in [(0, click.user), *((1, ITEM_IDS[item]) for item in click.items)]:
            count, seen = self.rows.get(key, (0, 0))
            self.rows[key] = count + 1, max(seen, click.ts)
