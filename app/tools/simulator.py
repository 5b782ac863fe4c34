"""The simulator: generates clicks from the simulated world, sends them at a steady rate, and reports its best AUC."""

# N impressions, T tags
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.best_auc import BestAucWindow, write_best_auc
from springtide.app.tools.send_limits import LINGER_MS, RateLimiter, TopicQuota
from springtide.app.tools.simulated_world import Impressions, SimulatorConfig, World
from springtide.stream.config import SourceConfig
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

    def to_json(self) -> list[bytes]:
        """Return one message per impression, without its true probability."""
        shown = self.impressions
        columns: dict[str, list[Any]] = {
            "ts": self.ts_N.tolist(),
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
LATE_SECONDS = 5.0  # a delay longer than this (a suspended laptop) is not caught up


def simulate(
    config: SimulatorConfig,
    source: SourceConfig,
    log_path: Path,
    stopping: threading.Event,
    *,
    limit: int | None = None,
) -> int:
    """Send clicks until `limit` or `stopping`; return how many were sent."""
    connection = source.kafka_config()
    with Admin(connection, patient=True) as admin:
        admin.ensure_topic(source.topic, num_partitions=1)
    best_auc = BestAucWindow()
    generator = ClickGenerator(config, start_ms=wall_ms())
    limiter = RateLimiter(config.rate)
    reported_at = -REPORT_SECONDS
    num_sent, codec = 0, source.open_codec()
    with Producer(connection, linger_ms=LINGER_MS, patient=True) as producer:
        quota = TopicQuota(source, log_path)
        while not stopping.is_set() and (limit is None or num_sent < limit):
            limiter.wait(num_sent, stopping)
            clicks = generator.take_chunk()
            for message in clicks.to_json()[: None if limit is None else limit - num_sent]:
                producer.send(source.topic, codec.encode(message))
                num_sent += 1
            best_auc.observe(clicks.impressions.probability_N, clicks.click_N)
            skipped = quota.wait_for_room(producer, stopping)
            if (behind := -limiter.seconds_until(num_sent)) - skipped > LATE_SECONDS:
                skipped = behind
            limiter.skip(skipped)
            generator.skip_time(skipped)
            if time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                write_best_auc(log_path, best_auc.value())
        producer.flush()
    write_best_auc(log_path, best_auc.value())
    return num_sent
