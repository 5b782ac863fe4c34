"""A workspace as a user has one: a folder, a springtide.toml, the console script's processes, a real broker."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stream.kafka.admin import Admin
from stream.kafka.config import KafkaConfig
from stream.kafka.library import kafka
from stream.kafka.producer import Producer
from stream.positions import Partition

CONFIG = """
name = "test"
[source]
topic = "clicks"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
sequence = ["last_items"]
dense = ["age"]
share = {{ last_items = "item_id" }}
[features.item_id]
[features.user_id]
[table]
dim = 8
device_bytes = "32MiB"
[train]
batch_size = 64
max_wait_seconds = 0.05
[log]
publish_seconds = 0.1
onnx = false
[serve]
port = {port}
"""


def wait_until(check: Callable[[], Any], *, seconds: float = 60.0, what: str = "it") -> Any:
    """The first true value of check(); fails when the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {seconds:g} s")


class Workspace:
    """One user's folder and the processes started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "springtide.toml").write_text(CONFIG.format(port=self.port))

    @property
    def log(self) -> Path:
        return self.folder / "var" / "test" / "log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *command: str, more: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `springtide command` and go on; `more`: of its environment."""
        out = (self.folder / f"{len(self.processes)}-{command[0]}.out").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "app", *command],
            cwd=self.folder,
            env=environment() | (more or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
        out.close()
        self.processes.append(process)
        return process

    def run(self, *command: str, seconds: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Run `springtide command` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "app", *command],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def train_until_end(self) -> dict[str, Any]:
        """`springtide train --until-end`; returns the status it prints last."""
        done = self.run("train", "--until-end")
        assert done.returncode == 0, done.stderr[-3000:]
        status: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return status

    def start_broker(self) -> str:
        """Start the embedded broker; returns its address."""
        self.start("broker")
        return wait_until(self.broker_address, what="the broker's address")

    def broker_address(self) -> str | None:
        path = self.log / "broker.json"
        return json.loads(path.read_text())["address"] if path.exists() else None

    def connection(self) -> KafkaConfig:
        return KafkaConfig(bootstrap_servers=self.broker_address())

    def produce(self, values: list[bytes | None]) -> None:
        """Append messages to the topic's one partition, in order."""
        with Admin(self.connection()) as admin:
            admin.ensure_topic("clicks")
        with Producer(self.connection()) as producer:
            for value in values:
                producer.send("clicks", value)
            producer.flush()

    def consume(self, topic: str) -> list[Any]:
        """Every record of a topic's one partition, with its headers."""
        partition = Partition(topic, 0)
        with Admin(self.connection()) as admin:
            end = admin.end_offsets(admin.require_topic(topic))[partition]
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker_address(), fetch_max_wait_ms=5)
        consumer.assign([kafka.TopicPartition(*partition)])
        consumer.seek(kafka.TopicPartition(*partition), 0)
        records: list[Any] = []
        while len(records) < end:
            for polled in consumer.poll(timeout_ms=500).values():
                records += polled
        consumer.close(autocommit=False)
        return records

    def get(self, path: str) -> dict[str, Any] | None:
        """A route's JSON, or None while it does not answer 200."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                document: dict[str, Any] = json.loads(answer.read())
                return document
        except OSError:
            return None

    def stop(self, process: subprocess.Popen[str], *, by: signal.Signals = signal.SIGTERM) -> int:
        """Signal a process and wait for its end; returns its exit status."""
        process.send_signal(by)
        return process.wait(timeout=20)

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return dict(os.environ) | {"PYTHONPATH": f"{root}:{root / 'deploy' / 'client'}", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """Below those that the system gives to clients: one of them may take it while a killed server starts again."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
