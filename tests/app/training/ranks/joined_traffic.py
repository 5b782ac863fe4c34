"""Impressions in three partitions and their clicks in two others, as time goes on; what must be learned of them."""

import json
import random
import time
from collections import Counter
from typing import Any

import numpy as np

from springtide.stream.join.config import LateRule
from springtide.stream.kafka.producer import Producer
from springtide.stream.positions import Partition, PartitionShare
from tests.app.training.trainer_env import TrainerEnv
from tests.stream.join.batch_join import Label, Log, Record, batch_join
from tests.support.kafka import create_topic
from tests.support.waiting import DEADLINE_SECONDS

PARTITIONS, CLICK_PARTITIONS = 3, 2
WINDOW_MS, LATENESS_MS, EARLY_MS, STEP_MS = 5_000, 1_000, 500, 20
UNTIL_MS = 8_010  # so that no two samples are due in the same millisecond
KINDS = {"impressions": ("impression", "imp"), "actions": ("click", "actions")}  # as `batch_join` has them
AT_ONCE = 20  # impressions: of less than the lateness, so that what follows is not late for who has read them
SETTINGS = """
[source]
topic = "impressions"
[join]
key = ["request"]
score = "score"
lateness_seconds = 1
early_seconds = 0.5
idle_seconds = 0.3
[labels.click]
topic = "actions"
window_seconds = 5
"""


class JoinedTraffic:
    """Sends impressions, of which some are clicked in time and others too late, and records that are refused."""

    def __init__(self, env: TrainerEnv, late: LateRule = "ignore") -> None:
        """`late`: what clicks after the window change."""
        self.env, self.random, self.num = env, random.Random(5), 0
        self.label = Label("click", WINDOW_MS, until_ms=UNTIL_MS, late=late)
        self.start_ms = int(time.time() * 1000) - 3_600_000
        self.labels: dict[int, int] = {}  # by item, at the window's end: each impression has its own
        self.late: set[int] = set()  # the items that are clicked after it, and before UNTIL_MS
        self.logs: Log = {("imp", n): [] for n in range(PARTITIONS)}  # without what cannot be decoded
        self.logs |= {("actions", n): [] for n in range(CLICK_PARTITIONS)}
        self.refused: Counter[str] = Counter()
        self._waiting: list[tuple[int, int]] = []  # clicks to come: their time, and the impression
        until = UNTIL_MS / 1000
        env.configure(SETTINGS, {"labels": {"click": {"until_seconds": until, "late": late}}})
        create_topic(env.broker.address, "impressions", num_partitions=PARTITIONS)
        create_topic(env.broker.address, "actions", num_partitions=CLICK_PARTITIONS)

    @property
    def now_ms(self) -> int:
        return self.start_ms + self.num * STEP_MS

    @property
    def num_due(self) -> int:
        """The samples that can be learned by what was sent."""
        return len(self._shown_before(WINDOW_MS)) + self._num_again(self._shown_before(UNTIL_MS))

    @property
    def num_samples(self) -> int:
        """All samples: those of impressions, and those for what came after the window."""
        return self.num + self._num_again(range(self.num))

    def _shown_before(self, after_ms: int) -> range:
        """The impressions of which so much time is over."""
        return range(max(0, self.num - -(-(after_ms + LATENESS_MS) // STEP_MS) - AT_ONCE))

    def _num_again(self, items: range) -> int:
        """How many of these are learned a second time."""
        if self.label.late == "settle":
            return len(items)
        return len(self.late.intersection(items)) if self.label.late == "importance_weighted" else 0

    def samples_of(self, share: PartitionShare) -> tuple[list[tuple[int, int, int, float | None]], dict[str, float]]:
        """What a rank learns by the definition of the join: item, grade, label, F before it; and its last F."""
        own = {p: log for p, log in self.logs.items() if p[0] != "imp" or share.holds(Partition(*p))}
        times, shares = {"lateness_ms": LATENESS_MS, "early_ms": EARLY_MS, "dedupe_ms": 0}, dict[str, float]()
        rows, _ = batch_join(own, {"click": self.label}, last_shares=shares, **times)
        items = [(shown_ms - self.start_ms) // STEP_MS for _, _, shown_ms, *_ in rows]
        samples = [
            (item, row[6], int(row[7][0]), float(np.float32(row[8][0])) if row[8] else None)
            for item, row in zip(items, rows, strict=True)
            if item < self.num
        ]
        return samples, shares

    def send(self, num: int) -> None:
        """Send more impressions and the clicks up to their time, and to each partition some records to be refused."""
        while num > 0:
            self._send_some(min(num, AT_ONCE))
            num -= AT_ONCE
        with Producer(self.env.kafka) as producer:
            for topic, num_partitions in (("impressions", PARTITIONS), ("actions", CLICK_PARTITIONS)):
                kind, log = KINDS[topic]
                for partition in range(num_partitions):
                    self.logs[log, partition] += [
                        Record(kind, None, self.now_ms),
                        Record(kind, 1, self.start_ms - 100_000),
                    ]
                    producer.send(topic, b"{", partition=partition)
                    self._send(producer, topic, partition, request=None, user_id=1, item_id=1, ts=self.now_ms)
                    self._send(producer, topic, partition, request=1, user_id=1, item_id=1, ts=self.start_ms - 100_000)
                    self.refused.update(("bad_json", "no_key", "late"))
            producer.flush(DEADLINE_SECONDS)

    def end(self) -> None:
        """Send the clicks that are left, and let time go on in both topics until all windows are over."""
        ms = self.now_ms + 3 * WINDOW_MS
        with Producer(self.env.kafka) as producer:
            self._send_clicks(producer, ms)
            for partition in range(PARTITIONS):
                self._send(producer, "impressions", partition, request="end", user_id=1, item_id=1, ts=ms)
                self.logs["imp", partition].append(Record("impression", -1, ms))
            for partition in range(CLICK_PARTITIONS):
                self._send(producer, "actions", partition, request="none", ts=ms)
                self.logs["actions", partition].append(Record("click", -2, ms))
            producer.flush(DEADLINE_SECONDS)

    def _send_some(self, num: int) -> None:
        with Producer(self.env.kafka) as producer:
            for n in range(self.num, self.num + num):
                ms = self.start_ms + n * STEP_MS
                self._send(
                    producer,
                    "impressions",
                    n % PARTITIONS,
                    request=n,
                    user_id=n % 37,
                    item_id=n,
                    age=n % 80,
                    ts=ms,
                    score=0.01 + n % 90 / 100,
                )
                self.logs["imp", n % PARTITIONS].append(Record("impression", n, ms))
                delay_ms = self.random.choice((-400, 300, 4_900, WINDOW_MS + 1, None, None))
                self.labels[n] = int(delay_ms is not None and delay_ms <= WINDOW_MS)
                if delay_ms is not None:
                    self.late |= {n} if delay_ms > WINDOW_MS else set()
                    self._waiting.append((ms + delay_ms, n))
            self.num += num
            self._send_clicks(producer, self.now_ms)
            producer.flush(DEADLINE_SECONDS)

    def _send_clicks(self, producer: Producer, until_ms: int) -> None:
        for ms, n in sorted(click for click in self._waiting if click[0] <= until_ms):
            self._send(producer, "actions", n % CLICK_PARTITIONS, request=str(n), ts=ms)
            self.logs["actions", n % CLICK_PARTITIONS].append(Record("click", n, ms))
        self._waiting = [click for click in self._waiting if click[0] > until_ms]

    def _send(self, producer: Producer, topic: str, partition: int, **fields: Any) -> None:
        producer.send(topic, json.dumps(fields).encode(), partition=partition)
