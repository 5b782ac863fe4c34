"""The simulator: generates clicks from the simulated world, sends them at a steady rate, and reports its best AUC."""

# N impressions, T tags
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.best_auc import BestAucWindow, write_best_auc
from springtide.app.tools.send_limits import LINGER_MS, RateLimiter, TopicQuota, TrainerReadiness
from springtide.app.tools.simulated_events import SimulatedEvents
from springtide.app.tools.simulated_world import Impressions, SimulatorConfig, World
from springtide.stream.config import SourceConfig
from springtide.stream.join.config import JoinPlan
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from springtide_client.system.clock import wall_ms

DEVICES = ("phone", "tablet", "desktop", "tv")


@dataclass(frozen=True)
class Clicks:
    """Impressions, whether each was clicked, and when."""

    impressions: Impressions
    click_N: npt.NDArray[np.bool_]
    ts_N: npt.NDArray[np.int64]  # Unix milliseconds

    def __len__(self) -> int:
        return len(self.click_N)

    def first(self, num: int) -> "Clicks":
        """The first ones."""
        columns = {field.name: getattr(self.impressions, field.name)[:num] for field in fields(self.impressions)}
        return Clicks(Impressions(**columns), self.click_N[:num], self.ts_N[:num])

    def to_json(self, requests: Sequence[str] | None = None) -> list[bytes]:
        """Return one message per impression, without its true probability.

        `requests`: ids of the impressions, instead of whether they were clicked.
        """
        shown = self.impressions
        columns: dict[str, list[Any]] = {
            "ts": self.ts_N.tolist(),
            "request_id": list(requests or ()),
            "click": self.click_N.astype(np.int64).tolist(),
            "user_id": shown.user_N.tolist(),
            "segment": [f"s{segment}" for segment in shown.segment_N.tolist()],
            "country": [f"c{country}" for country in shown.country_N.tolist()],
            "device": [DEVICES[device % len(DEVICES)] for device in shown.device_N.tolist()],
            "placement": shown.placement_N.tolist(),
            "item_id": shown.item_N.tolist(),
            "category": shown.category_N.tolist(),
            "publisher": shown.publisher_N.tolist(),
            "tags": [[f"t{tag}" for tag in tags if tag >= 0] for tags in shown.tags_NT.tolist()],
            "price": shown.price_N.tolist(),
            "item_age_hours": shown.item_age_hours_N.tolist(),
        }
        del columns["request_id" if requests is None else "click"]
        encode = msgspec.json.Encoder().encode
        return [encode(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


class ClickGenerator:
    """Generates clicks. Repeatable: equal (config, start_ms) give equal clicks."""

    CHUNK = 100  # clicks drawn at once

    def __init__(self, config: SimulatorConfig, *, start_ms: int) -> None:
        self._config = config
        self._start_ms = start_ms
        self.world = World(config)
        self._chunk = 0
        self._skipped_ms = 0

    def skip_time(self, seconds: float) -> None:
        """Let simulated time pass without clicks."""
        self._skipped_ms += max(0, int(seconds * 1_000))

    def take_chunk(self) -> Clicks:
        """Return the next CHUNK clicks."""
        first = self._chunk * self.CHUNK
        random = np.random.default_rng((self._config.seed, self._start_ms, self._chunk))
        begin_ms = self._start_ms + self._skipped_ms
        ts_N = begin_ms + ((first + np.arange(self.CHUNK)) * 1_000 / self._config.rate).astype(np.int64)
        impressions = self.world.draw(self.CHUNK, int(ts_N[0]), random)
        self._chunk += 1
        return Clicks(impressions=impressions, click_N=random.random(self.CHUNK) < impressions.probability_N, ts_N=ts_N)


REPORT_SECONDS = 1.0
START_SECONDS = 1.0  # between two chunks while the trainer starts
LATE_SECONDS = 5.0  # a delay longer than this (a suspended laptop) is not caught up
CLICK_SECONDS = 0.05  # between two looks at which clicks are due


def simulate(
    config: SimulatorConfig,
    source: SourceConfig,
    log_path: Path,
    stopping: threading.Event,
    *,
    limit: int | None = None,
    join: JoinPlan | None = None,
    await_trainer: bool = False,
) -> int:
    """Send clicks until `limit` or `stopping`; return how many were sent.

    `join`: send impressions and clicks apart; `limit` is then of impressions, whose clicks are all waited for.
    `await_trainer`: send a chunk a second until a trainer has learned and published some, so that it has no backlog.
    """
    with Simulator(config, source, log_path, stopping, join, await_trainer=await_trainer) as simulator:
        simulator.run(limit)
        return simulator.num_sent


class Simulator:
    """Sends what the generator generates, as messages of one topic, or of one of impressions and one of clicks."""

    def __init__(
        self,
        config: SimulatorConfig,
        source: SourceConfig,
        log_path: Path,
        stopping: threading.Event,
        join: JoinPlan | None,
        *,
        await_trainer: bool,
    ) -> None:
        self._source, self._log_path, self._stopping, self._join = source, log_path, stopping, join
        events = [] if join is None else [fields.topic for fields in join.events]
        connection, start_ms = source.kafka_config(), wall_ms()
        self._trainer_readiness = TrainerReadiness(log_path) if await_trainer else None
        with Admin(connection, patient=True) as admin:
            for topic in (source.topic, *events):
                admin.ensure_topic(topic, num_partitions=1)
        self._generator = ClickGenerator(config, start_ms=start_ms)
        self._events = None if join is None else SimulatedEvents(join, seed=config.seed, start_ms=start_ms)
        self._events_topic = "".join(events[:1])
        self._limiter = RateLimiter(config.rate)
        self._best_auc, self._reported_at = BestAucWindow(), -REPORT_SECONDS
        self._codec = source.open_codec()
        self._shown_until_ms, self._shown_at = 0, time.monotonic()
        self.num_sent = 0  # clicks, or impressions
        self._producer = Producer(connection, linger_ms=LINGER_MS, patient=True)
        self._quota = TopicQuota(source, log_path, events=events)

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def run(self, limit: int | None) -> None:
        """Send until `limit` or until asked to stop."""
        while not self._stopping.is_set() and (limit is None or self.num_sent < limit):
            # impressions are sent when all of a chunk were shown: none is of the future
            ahead = 0 if self._events is None else ClickGenerator.CHUNK
            self._limiter.wait(self.num_sent + ahead, self._stopping)
            self._send(self._generator.take_chunk(), limit)
            skipped = self._quota.wait_for_room(self._producer, self._stopping, pause=self._pause)
            skipped += self._wait_for_trainer()
            if (behind := -self._limiter.seconds_until(self.num_sent)) - skipped > LATE_SECONDS:
                skipped = behind
            self._limiter.skip(skipped)
            self._generator.skip_time(skipped)
            if time.monotonic() - self._reported_at >= REPORT_SECONDS:
                self._report()
        while self._events and not self._stopping.is_set():
            self._send_clicks(self._now_ms())
            self._stopping.wait(CLICK_SECONDS)
        self._producer.flush()
        self._report()

    def _send(self, clicks: Clicks, limit: int | None) -> None:
        num = len(clicks) if limit is None else min(len(clicks), limit - self.num_sent)
        if self._events is None:
            messages, click_N = clicks.to_json()[:num], clicks.click_N
        else:
            messages, click_N = self._events.show(clicks.first(num))
        for message in messages:
            self._producer.send(self._source.topic, self._codec.encode(message))
        self.num_sent += num
        self._best_auc.observe(clicks.impressions.probability_N[: len(click_N)], click_N)
        self._shown_until_ms, self._shown_at = int(clicks.ts_N[-1]), time.monotonic()
        self._send_clicks(self._shown_until_ms)  # by the time that is simulated, so that a delay makes none late

    def _wait_for_trainer(self) -> float:
        """Wait a moment while the trainer starts; return the seconds that took."""
        if self._trainer_readiness is None:
            return 0.0
        if self._trainer_readiness.is_ready:
            self._trainer_readiness = None
            return 0.0
        began = time.monotonic()
        self._stopping.wait(START_SECONDS)
        return time.monotonic() - began

    def _send_clicks(self, now_ms: int) -> None:
        if self._events is not None:
            for message in self._events.due_clicks(now_ms):
                self._producer.send(self._events_topic, self._codec.encode(message))

    def _now_ms(self) -> int:
        """The simulated time while nothing is shown."""
        return self._shown_until_ms + int(1000 * (time.monotonic() - self._shown_at))

    def _pause(self) -> int | None:
        """Let time go on while nothing is shown; return until when a join must be to have everything, in ms."""
        if self._events is None or self._join is None:
            return None
        now_ms = self._now_ms()
        self._send_clicks(now_ms)
        self._producer.send(self._events_topic, self._codec.encode(self._events.pause_message(now_ms)))
        return self._shown_until_ms + max(label.window_ms for label in self._join.labels)

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        write_best_auc(self._log_path, self._best_auc.value())
