"""A rate limiter keeps the mean rate, and skips time that is not to be caught up."""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from springtide.app.tools import send_limits, simulator
from springtide.app.tools.send_limits import RateLimiter, TopicQuota, TrainerReadiness, warn_of_retention
from springtide.app.tools.simulated_world import SimulatorConfig
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.config import SourceConfig
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from tests.support.waiting import wait_until


def test_a_late_sender_catches_up() -> None:
    now = 100.0
    limiter = RateLimiter(10.0, clock=lambda: now)
    assert limiter.seconds_until(5) == 0.5
    now += 2.0
    assert limiter.seconds_until(5) == -1.5
    assert limiter.seconds_until(20) == 0.0


def test_skipped_time_is_not_caught_up() -> None:
    now = 100.0
    limiter = RateLimiter(10.0, clock=lambda: now)
    now += 3.0
    limiter.skip(2.0)
    assert limiter.seconds_until(10) == 0.0


def test_without_a_rate_nothing_waits() -> None:
    limiter = RateLimiter(None)
    assert limiter.seconds_until(10**9) == 0.0
    limiter.wait(10**9, threading.Event())


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"retention.ms": "60000"}, True),
        ({"retention.ms": "604800000"}, False),
        ({"retention.ms": "-1"}, False),
        ({}, False),
    ],
)
def test_a_topic_that_forgets_soon_is_warned_of(settings, warns, caplog) -> None:
    warn_of_retention(SimpleNamespace(topic_settings=lambda topic: settings), "clicks")
    assert ("retention.ms of topic 'clicks'" in caplog.text) == warns


def test_a_trainer_is_ready_once_it_published_something_that_it_learned_since(tmp_path: Path) -> None:
    def write(**fields: object) -> None:
        (tmp_path / "status-0000000001.json").write_text(json.dumps(fields))

    write(version=4, samples_trained=500)  # of a trainer that ended
    readiness = TrainerReadiness(tmp_path)
    assert not readiness.is_ready
    write(version=5, samples_trained=500)
    assert not readiness.is_ready
    write(version=4, samples_trained=600)
    assert not readiness.is_ready
    write(version=5, samples_trained=600)
    assert readiness.is_ready
    write(version=5, samples_trained=600)
    assert TrainerReadiness(tmp_path / "no log").is_ready is False


def test_a_simulator_that_awaits_a_trainer_sends_a_chunk_at_a_time_until_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "START_SECONDS", 0.3)
    log, stopping = tmp_path / "log", threading.Event()
    chunk = simulator.ClickGenerator.CHUNK
    with EmbeddedBroker(log):
        source = SourceConfig(topic="clicks", log_path=log)
        with Admin(source.kafka_config()) as admin:
            admin.ensure_topic("clicks")
        sent: list[int] = []
        thread = threading.Thread(
            target=lambda: sent.append(
                simulator.simulate(
                    SimulatorConfig(rate=1e6), source, log, stopping, limit=20 * chunk, await_trainer=True
                )
            )
        )
        began = time.monotonic()
        thread.start()
        wait_until(lambda: num_records(source) >= 2 * chunk, "two chunks")
        assert num_records(source) <= (1 + (time.monotonic() - began) / 0.3) * chunk
        (log / "status-0000000001.json").write_text(json.dumps({"version": 1, "samples_trained": chunk}))
        thread.join(60)
        assert sent == [num_records(source)] == [20 * chunk]


def write_status(log: Path, committed: int) -> None:
    (log / "status-0000000001.json").write_text(json.dumps({"positions": {"clicks/0": {"committed": committed}}}))


def num_records(source: SourceConfig) -> int:
    with Admin(source.kafka_config()) as admin:
        [end] = admin.end_offsets(admin.require_topic("clicks")).values()
    return end


def test_a_full_topic_is_re_created_once_all_of_it_is_durably_learned(tmp_path: Path) -> None:
    log, stopping = tmp_path / "log", threading.Event()
    with EmbeddedBroker(log):
        source = SourceConfig(topic="clicks", log_path=log)
        with Admin(source.kafka_config()) as admin:
            admin.ensure_topic("clicks")
        with Producer(source.kafka_config()) as producer:
            quota = TopicQuota(source, log, max_bytes=100_000, check_every=0)
            for _ in range(1_000):
                producer.send("clicks", b"x" * 200)
            producer.flush()

            write_status(log, committed=999)
            threading.Timer(0.3, stopping.set).start()
            assert quota.wait_for_room(producer, stopping) >= 0.25
            assert num_records(source) == 1_000

            stopping.clear()
            write_status(log, committed=1_000)
            quota.wait_for_room(producer, stopping)
            assert num_records(source) == 0
            producer.send("clicks", b"y")
            producer.flush()
            assert num_records(source) == 1


def test_joined_topics_are_re_created_together_once_the_time_of_the_last_window_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_limits, "PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(send_limits, "SETTLE_SECONDS", 0.1)
    log, stopping, pauses = tmp_path / "log", threading.Event(), []
    with EmbeddedBroker(log):
        source = SourceConfig(topic="clicks", log_path=log)
        with Admin(source.kafka_config()) as admin, Producer(source.kafka_config()) as producer:
            ids = {topic: admin.ensure_topic(topic).id for topic in ("clicks", "orders")}
            for topic in ids:
                producer.send(topic, b"x" * 200)

            def pause() -> int:
                """Time goes on, and is learned after the second message."""
                producer.send("orders", b"pause")
                pauses.append(1)
                status = {
                    "version": 7,
                    "durable_version": 7,
                    "join": {"watermark_ms": 1_001 if len(pauses) > 1 else 1_000},
                    "positions": {"clicks/0": {"end": 1}, "orders/0": {"end": 1 + len(pauses)}},
                }
                (log / "status-0000000001.json").write_text(json.dumps(status))
                return 1_000

            quota = TopicQuota(source, log, max_bytes=300, check_every=0, events=["orders"])
            quota.wait_for_room(producer, stopping, pause=pause)
            assert len(pauses) > 1
            found = {topic: admin.require_topic(topic) for topic in ids}
            assert all(found[topic].id != ids[topic] for topic in ids)
            assert [list(admin.end_offsets(topic).values()) for topic in found.values()] == [[0], [0]]


def test_a_broker_that_is_not_embedded_has_no_quota(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "log") as broker:
        source = SourceConfig(topic="clicks", bootstrap_servers=broker.address)
        with Admin(source.kafka_config()) as admin:
            admin.ensure_topic("clicks")
        with Producer(source.kafka_config()) as producer:
            quota = TopicQuota(source, tmp_path, max_bytes=1, check_every=0)
            producer.send("clicks", b"x" * 200)
            producer.flush()
            quota.wait_for_room(producer, threading.Event())
        assert num_records(source) == 1
