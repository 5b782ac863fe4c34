"""Generates clicks as JSON from the simulated world, at a steady rate of simulated time. Knows no Kafka, no clock."""

# N impressions, T tags

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.tools.simulator.config import SimulatorConfig
from springtide.app.tools.simulator.world import Impressions, World

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
