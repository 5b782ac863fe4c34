"""Faults of Apache Kafka under a trainer that lives through them: frozen, killed, cut off, faster than learning.

`SPRINGTIDE_TEST_BROKER=apache python -m tests.torture.broker_faults` plays them at length and prints how long each
recovery took: from the moment the node answers until everything that was produced by then is learned.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka

from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.errors import StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.support.apache_kafka import ApacheKafka, shared_node, stop_shared_node
from tests.support.broker import USES_APACHE
from tests.support.config import write_config
from tests.support.process_pool import ForkedProcess, ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.faulty_broker import FaultyBroker

TOPIC, NUM_USERS, PARTITIONS = "faults", 97, 3
SETTINGS = """
name = "faults"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id"]
[table]
dim = 4
device_bytes = "8MiB"
[train]
threads = 1
batch_size = 256
[log]
publish_seconds = 0.2
durable_seconds = 0.2
onnx = false
"""
SECONDS = 900.0  # a deadline
START_MS = 1_700_000_000_000
SLOW_BATCH, SLOW_RECORDS, RATE_SECONDS = 8, 100_000, 5.0


def click(number: int) -> bytes:
    """The record of this number."""
    return b'{"user_id": %d, "click": %d, "ts": %d}' % (number % NUM_USERS, number % 3 == 0, START_MS + number)


class TroubledTrainer:
    """A trainer over a proxy to the node, and what was sent to it.

    Records are sent straight to the node, whose own address knows no proxy; a batch of them is known to be in the
    topic once the node has acknowledged it.
    """

    def __init__(self, folder: Path, pool: ProcessPool) -> None:
        self.node: ApacheKafka = shared_node()
        self.proxy = FaultyBroker()
        self.folder, self.num_sent = folder, 0
        self.node.delete_topics(TOPIC)
        with Admin(KafkaConfig(bootstrap_servers=self.node.address), patient=True) as admin:
            admin.ensure_topic(TOPIC, num_partitions=PARTITIONS)
        source = {"topic": TOPIC, "bootstrap_servers": self.proxy.address}
        self._pool, self._source = pool, source
        self.log = folder / "var" / "faults" / "log"
        self.process = self._start()

    def _start(self, **train: int) -> ForkedProcess:
        write_config(self.folder / "springtide.toml", SETTINGS, {"source": self._source, "train": train})
        out, err = self.folder / "train.out", self.folder / "train.err"
        pid = self._pool.start(["train", "--no-compact"], cwd=self.folder, out=out, err=err, environment={})
        return ForkedProcess(self._pool, pid)

    def restart_trainer(self, **train: int) -> None:
        """Stop the trainer, and start it with other settings of `[train]`."""
        self.stop_trainer()
        self.process = self._start(**train)

    def stop_trainer(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 0, self.output()

    def memory_mib(self) -> int:
        """The trainer's resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    @contextlib.contextmanager
    def fast_producer(self) -> Iterator[Callable[[int], None]]:
        """Sends so many of the next records by librdkafka, which is several times as fast as kafka-python."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.node.address, "linger.ms": 20})

        def send(number: int) -> None:
            for n in range(self.num_sent, self.num_sent + number):
                while True:
                    try:
                        producer.produce(TOPIC, click(n), partition=n % PARTITIONS)
                        break
                    except BufferError:
                        producer.poll(0.05)
            self.num_sent += number
            producer.poll(0)

        yield send
        assert producer.flush(SECONDS) == 0

    def status(self) -> TrainerStatus:
        return read_status(self.log) or TrainerStatus()

    def send(self, number: int) -> None:
        """Send the next records; the node must be there."""
        with Producer(KafkaConfig(bootstrap_servers=self.node.address), patient=True) as producer:
            for n in range(self.num_sent, self.num_sent + number):
                producer.send(TOPIC, click(n), partition=n % PARTITIONS)
            producer.flush()
        self.num_sent += number

    def wait_until_learned(self) -> None:
        wait_until(
            lambda: self.is_alive() and self.status().samples_trained >= self.num_sent,
            lambda: f"{self.status().samples_trained} of {self.num_sent}: {self.output()}",
            seconds=SECONDS,
        )

    def is_alive(self) -> bool:
        assert self.process.poll() is None, self.output()
        return True

    def output(self) -> str:
        return (self.folder / "train.err").read_text()[-3000:]

    def recover_after(self, fault: Callable[[], None], mend: Callable[[], None]) -> float:
        """Seconds from the moment the node answers, after fault and mending, until all that it holds is learned."""
        self.send(500)
        self.wait_until_learned()
        self.send(500)
        fault()
        mend()
        wait_until(self.answers, "the node")
        began = time.monotonic()
        self.send(500)
        self.wait_until_learned()
        return time.monotonic() - began

    def answers(self) -> bool:
        try:
            with Admin(KafkaConfig(bootstrap_servers=self.node.address)) as admin:
                return admin.topic(TOPIC) is not None
        except StreamError:
            return False

    def freeze(self, seconds: float) -> None:
        self.proxy.pause()
        time.sleep(seconds)

    def thaw(self) -> None:
        self.proxy.resume()

    def kill(self) -> None:
        self.node.kill()

    def restart(self) -> None:
        self.node.start()
        self.proxy.follow(self.node.pid)

    @contextlib.contextmanager
    def cut_every(self, seconds: float) -> Iterator[None]:
        """Break every connection of the trainer again and again."""
        ended = threading.Event()

        def cut() -> None:
            while not ended.wait(seconds):
                self.proxy.disconnect()
                self.proxy.reconnect()

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def check_counts(self) -> None:
        """Stop the trainer; every record counts once."""
        self.stop_trainer()
        directory = LogDirectory(self.log)
        view = View.open(directory.newest_base())
        for record in directory.records(view.head):
            view = view.apply(record)
        expected = {user: len(range(user, self.num_sent, NUM_USERS)) for user in range(NUM_USERS)}
        assert {user: view.row_info(0, user)["count"] for user in range(NUM_USERS)} == expected

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(SECONDS)
        self.proxy.close()


def overload(trainer: TroubledTrainer, seconds: float, factor: float) -> dict[str, Any]:
    """Produce `factor` times as fast as is learned; return what memory and lag did, and how long the rest took.

    Learning is slow meanwhile, by tiny batches: no node is ten times as fast as large ones are learned. With large ones
    it catches up.
    """
    trainer.restart_trainer(batch_size=SLOW_BATCH)
    with trainer.fast_producer() as send:
        send(SLOW_RECORDS)
        wait_until(lambda: trainer.status().samples_trained > trainer.num_sent - SLOW_RECORDS, "slow learning")
        before, began = trainer.status().samples_trained, time.monotonic()
        wait_until(lambda: time.monotonic() - began > RATE_SECONDS, "a measured rate")
        rate = (trainer.status().samples_trained - before) / (time.monotonic() - began)
        samples: list[int] = []
        lags: list[int] = []
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            if (due := int(rate * factor * passed) - sent) > 0:
                send(due)
                sent += due
            samples.append(trainer.memory_mib())
            lags.append(trainer.status().lag or 0)
            time.sleep(0.1)
        produced_per_second = sent / (time.monotonic() - began)
    trainer.restart_trainer()
    began = time.monotonic()
    trainer.wait_until_learned()
    return {
        "learned_per_second": round(rate),
        "produced_per_second": round(produced_per_second),
        "seconds": seconds,
        "lag": [lags[0], lags[len(lags) // 2], lags[-1]],  # at first, half, last
        "memory_mib": [samples[0], samples[len(samples) // 2], samples[-1], max(samples)],  # and the largest
        "caught_up_seconds": round(time.monotonic() - began, 1),
    }


def play(
    trainer: TroubledTrainer, *, frozen_seconds: float, kills: int, cut_seconds: float, report: Callable[[str], None]
) -> None:
    """One fault after the other, with the recovery of each; then every count is compared."""
    seconds = trainer.recover_after(lambda: trainer.freeze(frozen_seconds), trainer.thaw)
    report(f"frozen for {frozen_seconds:g} s: recovered in {seconds:.1f} s")
    for number in range(kills):
        seconds = trainer.recover_after(trainer.kill, trainer.restart)
        report(f"killed and restarted, {number + 1}: recovered in {seconds:.1f} s")
    until = time.monotonic() + cut_seconds
    with trainer.cut_every(1.0):
        while time.monotonic() < until:
            trainer.send(200)
            time.sleep(0.2)
        trainer.wait_until_learned()
    report(f"cut every second for {cut_seconds:g} s: {trainer.num_sent} records, all learned meanwhile")


def main() -> int:
    parser = argparse.ArgumentParser(prog="broker_faults")
    parser.add_argument("--frozen", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--cut", type=float, default=30.0)
    parser.add_argument("--overload", type=float, default=300.0, help="seconds")
    parser.add_argument("--factor", type=float, default=10.0, help="how many times as fast as is learned")
    options = parser.parse_args()
    if not USES_APACHE:
        parser.error("set SPRINGTIDE_TEST_BROKER=apache")
    pool = ProcessPool()
    folder = Path(tempfile.mkdtemp(prefix="broker-faults-"))
    trainer = TroubledTrainer(folder, pool)
    try:
        play(trainer, frozen_seconds=options.frozen, kills=options.kills, cut_seconds=options.cut, report=print)
        if options.overload:
            print(json.dumps(overload(trainer, options.overload, options.factor)), flush=True)
        trainer.check_counts()
        print(f"{trainer.num_sent} records, every count right")
    finally:
        trainer.close()
        pool.close()
        stop_shared_node()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
