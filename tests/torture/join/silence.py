"""Clicks, and then impressions, stop for an hour of event time: no open window is learned, and memory stays flat.

`SPRINGTIDE_TEST_BROKER=apache python -m tests.torture.join.silence` plays it at length and prints the figures.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka

from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.join.source import LONGEST_SILENCE_SECONDS
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from tests.support.apache_kafka import stop_shared_node
from tests.support.config import write_config
from tests.support.process_pool import ForkedProcess, ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.join.traffic import ACTIONS, IMPRESSIONS, NUM_PARTITIONS

WINDOW_MS, LATENESS_MS, CLICK_EVERY, CLICK_MS = 60_000, 10_000, 10, 30_000
SETTINGS = f"""
name = "silence"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
[join]
key = ["request"]
lateness_seconds = {LATENESS_MS / 1000}
idle_seconds = 3600
[labels.click]
topic = "{ACTIONS}"
window_seconds = {WINDOW_MS / 1000}
[table]
dim = 4
device_bytes = "32MiB"
[train]
threads = 1
[log]
publish_seconds = 0.2
durable_seconds = 0.2
onnx = false
"""
SECONDS, CHUNK_MS = 600.0, 20_000


class SilentTopics:
    """A trainer that joins clicks to impressions, of which either can stop while the other goes on."""

    def __init__(self, folder: Path, pool: ProcessPool, per_second: int, hour_ms: int) -> None:
        self.folder, self.per_second = folder, per_second
        self.broker = FaultyBroker()
        self.start_ms = int(time.time() * 1000) - 3 * hour_ms - 7_200_000
        with Admin(KafkaConfig(bootstrap_servers=self.broker.address), patient=True) as admin:
            for topic, count in NUM_PARTITIONS.items():
                admin.ensure_topic(topic, num_partitions=count)
        settings = {"bootstrap.servers": self.broker.address, "max.in.flight.requests.per.connection": 1}
        self._producer = confluent_kafka.Producer(settings)
        self._sent_ms = {IMPRESSIONS: 0, ACTIONS: 0}  # event time after the start
        self.log = folder / "log"
        source = {"topic": IMPRESSIONS, "bootstrap_servers": self.broker.address}
        places = {"source": source, "log": {"path": str(self.log)}, "table": {"disk_path": str(folder / "spill")}}
        write_config(folder / "springtide.toml", SETTINGS, places)
        pid = pool.start(["train", "--no-compact"], cwd=folder, out=folder / "train.out", environment={})
        self.trainer = ForkedProcess(pool, pid)

    def send(self, topic: str, until_ms: int) -> None:
        """Send the records of a topic up to an event time after the start."""
        step_ms, num = 1000 / self.per_second, NUM_PARTITIONS[topic]
        first, last = (int(ms / step_ms) for ms in (self._sent_ms[topic], until_ms))
        for n in range(first, last):
            ms = self.start_ms + int(n * step_ms)
            if topic == IMPRESSIONS:
                value = b'{"request":%d,"user_id":%d,"item_id":%d,"ts":%d}' % (n, n % 997, n % 10_007, ms)
            elif n % CLICK_EVERY == 0:
                clicked = n - int(CLICK_MS / step_ms)
                value = b'{"request":%d,"ts":%d}' % (clicked, ms)
            else:
                continue
            self._produce(topic, value, n // CLICK_EVERY % num)
        for partition in range(num):  # all partitions are as far
            ms = self.start_ms + until_ms
            self._produce(topic, b'{"request":null,"user_id":0,"item_id":0,"ts":%d}' % ms, partition)
        self._sent_ms[topic] = until_ms
        assert self._producer.flush(SECONDS) == 0

    def _produce(self, topic: str, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, partition=partition)
                return
            except BufferError:
                self._producer.poll(0.05)

    def num_due(self, until_ms: int) -> int:
        """Impressions whose windows are over when both topics have come so far."""
        due_ms = until_ms - LATENESS_MS - WINDOW_MS
        step_ms = 1000 / self.per_second
        return sum(int(n * step_ms) < due_ms for n in range(int(max(0, due_ms) / step_ms) + 2))

    def status(self) -> TrainerStatus:
        assert self.trainer.poll() is None, (self.folder / "train.out").read_text()[-2000:]
        return read_status(self.log) or TrainerStatus()

    def memory_mib(self) -> float:
        pages = int(Path(f"/proc/{self.trainer.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)

    def wait_until_learned(self, until_ms: int) -> None:
        num = self.num_due(until_ms)
        wait_until(
            lambda: self.status().samples_trained >= num,
            lambda: f"{self.status().samples_trained} of {num}: {(self.folder / 'train.out').read_text()[-500:]}",
            seconds=SECONDS,
        )

    def stop_alone(self, silent: str, since_ms: int, hour_ms: int, watch_seconds: float) -> dict[str, Any]:
        """Let the other topic go on for an hour; then let it come, too. Return what memory did meanwhile."""
        going_on = IMPRESSIONS if silent == ACTIONS else ACTIONS
        until_ms, at_ms = since_ms + hour_ms, since_ms
        # while impressions are silent the windows of those that came are over by the events' time; a window without
        # its clicks is not
        known_ms = since_ms if silent == ACTIONS else min(until_ms, since_ms + WINDOW_MS)
        learned, memory = self.num_due(known_ms), [self.memory_mib()]
        while at_ms < until_ms:
            at_ms = min(at_ms + CHUNK_MS, until_ms)
            self.send(going_on, at_ms)
            memory.append(self.memory_mib())
        self.wait_until_learned(known_ms)
        sent, began = len(memory), time.monotonic()
        while time.monotonic() - began < watch_seconds:
            memory.append(self.memory_mib())
            time.sleep(0.1)
        status = self.status()
        assert status.join is not None
        if watch_seconds > 1.5 * LONGEST_SILENCE_SECONDS:
            assert status.blocked_by == silent, (status.blocked_by, status.reason)
        assert status.samples_trained == learned, f"{status.samples_trained} samples instead of {learned}"
        held = {"impressions": status.join.impressions, "events": status.join.events}
        began = time.monotonic()
        self.send(silent, until_ms)
        self.wait_until_learned(until_ms)
        self.check(until_ms)
        return {
            "silent": silent,
            "records": int(hour_ms * self.per_second / 1000 / (1 if going_on == IMPRESSIONS else CLICK_EVERY)),
            "learned_meanwhile": learned - self.num_due(since_ms),
            "memory_mib": {"before": memory[0], "all_sent": memory[sent - 1], "most": max(memory), "last": memory[-1]},
            "held": held,
            "blocked_by": status.blocked_by,
            "slowest": status.join.slowest,
            "all_learned_after_seconds": round(time.monotonic() - began, 1),
            "memory_mib_after": self.memory_mib(),
        }

    def check(self, until_ms: int) -> None:
        """Every impression is learned once, those with a click as clicked."""
        num = self.num_due(until_ms)
        wait_until(lambda: self.status().samples_trained == num, "a status")
        status = self.status()
        clicked = len([n for n in range(num) if (n + int(CLICK_MS * self.per_second / 1000)) % CLICK_EVERY == 0])
        rate = status.scores.whole.label_rate
        assert rate is not None
        assert abs(rate - clicked / num) < 1e-4, (rate, clicked / num)

    def close(self) -> None:
        self.trainer.send_signal(signal.SIGKILL)
        self.trainer.wait(SECONDS)
        self.broker.close()


def play(topics: SilentTopics, hour_ms: int, watch_seconds: float, report: Callable[[str], None]) -> None:
    """Both topics for a while, impressions alone, both, events alone."""
    begin_ms = hour_ms // 6
    for at_ms in (begin_ms // 2, begin_ms):
        for topic in NUM_PARTITIONS:
            topics.send(topic, at_ms)
        topics.wait_until_learned(at_ms)
    for silent in (ACTIONS, IMPRESSIONS):
        report(json.dumps(topics.stop_alone(silent, begin_ms, hour_ms, watch_seconds)))
        begin_ms += hour_ms


def main() -> None:
    parser = argparse.ArgumentParser(prog="silence", description=__doc__)
    parser.add_argument("--per-second", type=int, default=300, help="impressions in a second of event time")
    parser.add_argument("--minutes", type=float, default=60.0, help="of silence, in event time")
    parser.add_argument("--watch", type=float, default=30.0, help="seconds, after everything was sent")
    options = parser.parse_args()
    folder, pool = Path(tempfile.mkdtemp(prefix="silence-")), ProcessPool()
    hour_ms = int(60_000 * options.minutes)
    topics = SilentTopics(folder, pool, options.per_second, hour_ms)
    try:
        play(topics, hour_ms, options.watch, lambda line: print(line, flush=True))
    finally:
        topics.close()
        pool.close()
        stop_shared_node()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
