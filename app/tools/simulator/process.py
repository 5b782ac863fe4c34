"""The simulator as a process: clicks into the topic at a steady rate, its best AUC into <log>/simulator.json."""

import json
import logging
import threading
import time
from pathlib import Path

from springtide_client.system.clock import wall_ms
from springtide_client.system.files import write_atomically

from app.scores.best_auc import BestAucWindow
from app.tools.rate_limiter import RateLimiter
from app.tools.simulator.click_generator import ClickGenerator
from app.tools.simulator.config import SimulatorConfig
from app.tools.topic_quota import LINGER_MS, TopicQuota
from stream.config import SourceConfig
from stream.kafka.admin import Admin
from stream.kafka.producer import Producer

logger = logging.getLogger(__name__)

PUBLISH_SECONDS = 1.0
LATE_SECONDS = 5.0  # what was missed for longer (a suspended laptop) is not caught up


def simulate(
    config: SimulatorConfig,
    source: SourceConfig,
    log_path: Path,
    stopping: threading.Event,
    *,
    limit: int | None = None,
) -> int:
    """Send clicks until the limit or the event; returns how many."""
    connection = source.kafka_config()
    with Admin(connection) as admin:
        admin.ensure_topic(source.topic, num_partitions=1)
    best = BestAucWindow()
    simulator = ClickGenerator(config, start_ms=wall_ms())
    pace = RateLimiter(config.rate)
    published = -PUBLISH_SECONDS
    num_sent = 0
    with Producer(connection, linger_ms=LINGER_MS) as producer:
        room = TopicQuota(source, log_path)
        while not stopping.is_set() and (limit is None or num_sent < limit):
            pace.wait(num_sent, stopping)
            clicks = simulator.take_chunk()
            for message in clicks.to_json()[: None if limit is None else limit - num_sent]:
                producer.send(source.topic, message)
                num_sent += 1
            best.observe(clicks.impressions.probability_N, clicks.click_N)
            missed = room.wait_for_room(producer, stopping)
            if (behind := -pace.seconds_until(num_sent)) - missed > LATE_SECONDS:
                missed = behind
            pace.skip(missed)
            simulator.skip_time(missed)
            if time.monotonic() - published >= PUBLISH_SECONDS:
                published = time.monotonic()
                write_best_auc(log_path, best.value())
        producer.flush()
    write_best_auc(log_path, best.value())
    return num_sent


def write_best_auc(log_path: Path, best_auc: float | None) -> None:
    """Replace <log>/simulator.json; a reader sees the old or the new one, whole."""
    log_path.mkdir(parents=True, exist_ok=True)
    document = {"best_auc": best_auc, "updated_ms": wall_ms()}
    write_atomically(log_path / "simulator.json", json.dumps(document).encode(), durable=False)
