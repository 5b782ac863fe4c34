"""The simulator as a process: sends clicks to the topic at a steady rate and reports its best AUC."""

import threading
import time
from pathlib import Path

from springtide.app.scores.best_auc import BestAucWindow, write_best_auc
from springtide.app.tools.rate_limiter import RateLimiter
from springtide.app.tools.simulator.click_generator import ClickGenerator
from springtide.app.tools.simulator.config import SimulatorConfig
from springtide.app.tools.topic_quota import LINGER_MS, TopicQuota
from springtide.stream.config import SourceConfig
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from springtide_client.system.clock import wall_ms

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
    num_sent = 0
    with Producer(connection, linger_ms=LINGER_MS, patient=True) as producer:
        quota = TopicQuota(source, log_path)
        while not stopping.is_set() and (limit is None or num_sent < limit):
            limiter.wait(num_sent, stopping)
            clicks = generator.take_chunk()
            for message in clicks.to_json()[: None if limit is None else limit - num_sent]:
                producer.send(source.topic, source.message_format.encode(message))
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
