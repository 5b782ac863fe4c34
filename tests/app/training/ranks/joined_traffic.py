"""Impressions in three partitions and their clicks in two others, as time goes on; what must be learned of them."""

import json
import random
import time
from collections import Counter
from typing import Any

from springtide.stream.kafka.producer import Producer
from tests.app.training.trainer_env import TrainerEnv
from tests.support.kafka import create_topic
from tests.support.waiting import DEADLINE_SECONDS

PARTITIONS, CLICK_PARTITIONS = 3, 2
WINDOW_MS, LATENESS_MS, STEP_MS = 5_000, 1_000, 20
AT_ONCE = 20  # impressions: of less than the lateness, so that what follows is not late for who has read them
SETTINGS = """
[source]
topic = "impressions"
[join]
key = ["request"]
lateness_seconds = 1
early_seconds = 0.5
idle_seconds = 0.3
[labels.click]
topic = "actions"
window_seconds = 5
"""


class JoinedTraffic:
    """Sends impressions, of which some are clicked in time and others too late, and records that are refused."""

    def __init__(self, env: TrainerEnv) -> None:
        self.env, self.random, self.num = env, random.Random(5), 0
        self.start_ms = int(time.time() * 1000) - 3_600_000
        self.labels: dict[int, int] = {}  # by item: each impression has its own
        self.refused: Counter[str] = Counter()
        self._waiting: list[tuple[int, int]] = []  # clicks to come: their time, and the impression
        env.configure(SETTINGS)
        create_topic(env.broker.address, "impressions", num_partitions=PARTITIONS)
        create_topic(env.broker.address, "actions", num_partitions=CLICK_PARTITIONS)

    @property
    def now_ms(self) -> int:
        return self.start_ms + self.num * STEP_MS

    @property
    def num_due(self) -> int:
        """The impressions that can be learned by what was sent."""
        return max(0, self.num - (WINDOW_MS + LATENESS_MS) // STEP_MS - AT_ONCE)

    def send(self, num: int) -> None:
        """Send more impressions and the clicks up to their time, and to each partition some records to be refused."""
        while num > 0:
            self._send_some(min(num, AT_ONCE))
            num -= AT_ONCE
        with Producer(self.env.kafka) as producer:
            for topic, num_partitions in (("impressions", PARTITIONS), ("actions", CLICK_PARTITIONS)):
                for partition in range(num_partitions):
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
            for partition in range(CLICK_PARTITIONS):
                self._send(producer, "actions", partition, request="none", ts=ms)
            producer.flush(DEADLINE_SECONDS)

    def _send_some(self, num: int) -> None:
        with Producer(self.env.kafka) as producer:
            for n in range(self.num, self.num + num):
                ms = self.start_ms + n * STEP_MS
                self._send(
                    producer, "impressions", n % PARTITIONS, request=n, user_id=n % 37, item_id=n, age=n % 80, ts=ms
                )
                delay_ms = self.random.choice((-400, 300, 4_900, WINDOW_MS + 1, None, None))
                self.labels[n] = int(delay_ms is not None and delay_ms <= WINDOW_MS)
                if delay_ms is not None:
                    self._waiting.append((ms + delay_ms, n))
            self.num += num
            self._send_clicks(producer, self.now_ms)
            producer.flush(DEADLINE_SECONDS)

    def _send_clicks(self, producer: Producer, until_ms: int) -> None:
        for ms, n in sorted(click for click in self._waiting if click[0] <= until_ms):
            self._send(producer, "actions", n % CLICK_PARTITIONS, request=str(n), ts=ms)
        self._waiting = [click for click in self._waiting if click[0] > until_ms]

    def _send(self, producer: Producer, topic: str, partition: int, **fields: Any) -> None:
        producer.send(topic, json.dumps(fields).encode(), partition=partition)
