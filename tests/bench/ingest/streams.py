"""ingest.streams: impressions joined with clicks, beside the left join of Kafka Streams over the same topics.

One node of Apache Kafka, two partitions for each topic, five windows of event time. Ours reads JSON and gives columns,
or learns them, versions included; the peer's values are carried along unparsed and its samples are a request's number
and a label. First both joins' samples are counted against the definition, with disorder, clicks before their
impression and clicks that come twice; then rates, memory, state on disk, and the time from a start after a kill to the
first new sample.
"""

# N samples, R requests
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np

from springtide.app.config.load import Config, load_config
from springtide.app.version_log.trainer_status import read_status
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from tests.bench.harness.report import Case, arguments, describe_case, describe_run, fail, save
from tests.bench.workloads.events import CATEGORICAL, DENSE, make_events
from tests.support.apache_kafka import STREAMS, VERSION, ApacheKafka, KafkaNotAvailableError, fetch_jars
from tests.support.processes import our_environment

PEER_SOURCE = Path(__file__).parents[1] / "peers" / "StreamsJoinPeer.java"
VARIANTS = ("default", "rocksdb", "memory", "rocksdb-exactly-once")
DESCRIBED = {
    "default": "as it comes: RocksDB, one thread, at least once",
    "rocksdb": "RocksDB, tuned, two threads, at least once",
    "memory": "in-memory stores, tuned, two threads, at least once",
    "rocksdb-exactly-once": "RocksDB, tuned, two threads, exactly once (v2)",
}
HEAP = "-Xmx2g"
PARTITIONS, WINDOW_MS, EARLY_MS, LATENESS_MS, MEAN_DELAY_MS, CLICKED = 2, 60_000, 5_000, 10_000, 15_000, 0.03
WINDOWS = 5  # of event time
SECONDS = 600.0  # a deadline
SETTINGS = f"""
name = "bench"
[schema]
labels = ["click"]
timestamp = "ts"
categorical = {json.dumps(CATEGORICAL)}
dense = {json.dumps(DENSE)}
[join]
key = ["request"]
lateness_seconds = {LATENESS_MS / 1000}
early_seconds = {EARLY_MS / 1000}
idle_seconds = 0.5
[labels.click]
topic = "CLICKS"
window_seconds = {WINDOW_MS / 1000}
[table]
dim = 16
device_bytes = "1GiB"
[log]
onnx = false
"""


@dataclass(frozen=True)
class Traffic:
    """Records of two topics in the order of their arrival: (partition, ms, key, value); and the labels by request."""

    impressions: list[tuple[int, int, bytes, bytes]]
    clicks: list[tuple[int, int, bytes, bytes]]
    label_R: np.ndarray[Any, Any]
    end_ms: int  # behind all windows


def make_traffic(number: int, *, is_disordered: bool) -> Traffic:
    """Impressions over five windows, each of its own request.

    Both topics are divided by the request, as Kafka Streams needs it. `is_disordered`: records arrive up to a second
    later than others, some clicks seem to come before their impression, and one click in ten is sent twice.
    """
    rng = random.Random(1)
    span_ms = WINDOWS * WINDOW_MS
    first_ms = int(time.time() * 1000) - span_ms - 10 * WINDOW_MS
    end_ms = first_ms + span_ms + 4 * WINDOW_MS
    events = [json.loads(event) for event in make_events(min(number, 20_000))]
    impressions, clicks, label_R = [], [], np.zeros(number, np.int8)
    for request in range(number):
        ms = first_ms + request * span_ms // number
        event = events[request % len(events)] | {"ts": ms, "request": request}
        del event["click"]
        key = str(request).encode()
        arrival_ms = ms + rng.randrange(1_000) * is_disordered
        impressions.append((arrival_ms, ms, key, json.dumps(event, separators=(",", ":")).encode()))
        if rng.random() < CLICKED:
            delay_ms = int(rng.expovariate(1 / MEAN_DELAY_MS))
            if is_disordered and rng.random() < 0.1:
                delay_ms = -rng.randrange(EARLY_MS)
            label_R[request] |= delay_ms <= WINDOW_MS
            for _ in range(1 + (is_disordered and rng.random() < 0.1)):
                click = json.dumps({"ts": ms + delay_ms, "request": request}).encode()
                arrival_ms = ms + delay_ms + rng.randrange(1_000) * is_disordered
                clicks.append((arrival_ms, ms + delay_ms, key, click))
    return Traffic(
        *(
            [(int(key) % PARTITIONS, ms, key, value) for _, ms, key, value in sorted(records, key=lambda r: r[0])]
            for records in (impressions, clicks)
        ),
        label_R,
        end_ms,
    )


class Bench:
    """A node, its topics, and where files go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = ApacheKafka(folder / "kafka")
        self.node.start()
        self.classes = folder / "classes"
        classpath = f"{STREAMS}/*"
        subprocess.run(["javac", "-cp", classpath, "-d", str(self.classes), str(PEER_SOURCE)], check=True)
        self.num_runs = 0
        self._end_ms: dict[str, int] = {}

    def fill(self, name: str, traffic: Traffic) -> None:
        """Make the topics NAME-impressions and NAME-clicks."""
        with Admin(KafkaConfig(bootstrap_servers=self.node.address), patient=True) as admin:
            for topic in ("impressions", "clicks"):
                admin.ensure_topic(f"{name}-{topic}", num_partitions=PARTITIONS)
        producer = confluent_kafka.Producer({"bootstrap.servers": self.node.address, "linger.ms": 20})
        for topic, records in (("impressions", traffic.impressions), ("clicks", traffic.clicks)):
            for partition, ms, key, value in records:
                while True:
                    try:
                        producer.produce(f"{name}-{topic}", value, key, partition=partition, timestamp=ms)
                        break
                    except BufferError:
                        producer.poll(0.05)
        if producer.flush(SECONDS):
            fail("the node did not take the records")
        self._end_ms[name] = traffic.end_ms
        self.pass_time(name)

    def pass_time(self, name: str) -> None:
        """Send records that are behind all windows to every partition, of keys that do not meet."""
        ms, producer = self._end_ms[name], confluent_kafka.Producer({"bootstrap.servers": self.node.address})
        for topic, key in (("impressions", -1), ("clicks", -2)):
            for partition in range(PARTITIONS):
                value = json.dumps({"ts": ms, "request": key}).encode()
                producer.produce(f"{name}-{topic}", value, str(key).encode(), partition=partition, timestamp=ms)
        if producer.flush(SECONDS):
            fail("the node did not take the last records")

    @contextmanager
    def time_goes_on(self, name: str) -> Iterator[None]:
        """Send such records every half second: Kafka Streams emits what is due when a record comes, once a second."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(0.5):
                self.pass_time(name)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def configure(self, name: str, folder: Path) -> Config:
        """A trainer of these topics, with its files in a folder."""
        folder.mkdir(exist_ok=True)
        path = folder / "springtide.toml"
        source = f'[source]\ntopic = "{name}-impressions"\nbootstrap_servers = "{self.node.address}"\n'
        text = SETTINGS.replace("CLICKS", f"{name}-clicks").replace("[log]", f'[log]\npath = "{folder / "log"}"')
        path.write_text(text.replace("[table]", f'{source}[table]\ndisk_path = "{folder / "spill"}"'))
        return load_config(path)

    def new_folder(self) -> Path:
        self.num_runs += 1
        folder = self.folder / f"run-{self.num_runs}"
        folder.mkdir()
        return folder

    def changelog_bytes(self, application: str) -> int:
        """Bytes of an application's topics in the node's log."""
        return sum(folder_bytes(path) for path in (self.folder / "kafka" / "data").glob(f"{application}-*"))

    def close(self) -> None:
        self.node.kill()


def folder_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take."""
    found = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found += path.stat().st_blocks * 512
        except OSError:
            continue  # RocksDB has deleted it
    return found


@contextmanager
def watched_memory(pid: int) -> Iterator[list[float]]:
    """Yield a list that gets the process's resident MiB, ten times a second."""
    ended, found = threading.Event(), []

    def watch() -> None:
        while not ended.wait(0.1):
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                return
            found.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@dataclass
class Run:
    """One run of a join over topics, from its connection to the last sample."""

    samples_per_second: float
    memory_mib: float  # the most resident
    disk_mib: float  # of local state
    broker_mib: float = 0.0  # of changelog topics


class StreamsPeer:
    """A Java process of one variant; it joins what it is asked to, one after the other."""

    def __init__(self, bench: Bench, variant: str, state: Path | None = None) -> None:
        """`state`: the folder of one that was killed."""
        self._bench, self.variant, self.state = bench, variant, state or bench.new_folder()
        numbers = [str(ms) for ms in (WINDOW_MS, EARLY_MS, LATENESS_MS)]
        options = [HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        command = ["java", *options, "-cp", f"{bench.classes}:{STREAMS}/*", "StreamsJoinPeer", variant]
        self._errors = (self.state / "errors").open("a")
        self.process = subprocess.Popen(
            [*command, bench.node.address, str(self.state / "state"), *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, application: str, name: str, num_samples: int, file: Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{application} {name}-impressions {name}-clicks {num_samples} {file}\n")
        self.process.stdin.flush()

    def answer(self) -> list[int]:
        """Wait for the next line; return its numbers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            fail(f"the peer {self.variant} ended: {(self.state / 'errors').read_text()[-2000:]}")
        return [int(word) for word in line.split()[1:]]

    def run(self, name: str, num_samples: int) -> tuple[Run, Path]:
        """Join the topics once, as a new application."""
        application = f"{self.variant}-{name}-{time.monotonic_ns()}"
        file = self.state / f"{application}.samples"
        with watched_memory(self.process.pid) as memory, self._bench.time_goes_on(name):
            self.ask(application, name, num_samples, file)
            self.answer()
            _, last_ms, num, start_ms = self.answer()
        rate = num / (last_ms - start_ms) * 1000
        state = folder_bytes(self.state / "state" / application) / 2**20
        changelogs = self._bench.changelog_bytes(application) / 2**20
        return Run(rate, max(memory), state, changelogs), file

    def restart_seconds(self, name: str, num_before: int) -> tuple[float, int, Path]:
        """Kill it in the middle of a join, start it again; seconds to the first sample after that, and the start's."""
        application = f"{self.variant}-{name}-restart-{time.monotonic_ns()}"
        file = self.state / f"{application}.samples"
        self.ask(application, name, 0, file)
        self.answer()
        deadline = time.monotonic() + SECONDS
        while file.stat().st_size < 9 * num_before:
            if time.monotonic() > deadline:
                fail(f"the peer {self.variant} gave {file.stat().st_size // 9} of {num_before} samples")
            time.sleep(0.02)
        self.close()
        num = file.stat().st_size // 9
        began_ms = time.time() * 1000
        again = StreamsPeer(self._bench, self.variant, self.state)
        try:
            again.ask(application, name, 0, file)
            (first_ms,) = again.answer()
        finally:
            again.close()
        return (first_ms - began_ms) / 1000, num, file

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()


def read_samples(file: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The requests and labels that a peer has emitted, without those of the last records."""
    found = np.fromfile(file, np.dtype([("request", ">i8"), ("label", "i1")]))
    found = found[found["request"] >= 0]
    return found["request"].astype(np.int64), found["label"]


def count_errors(request_N: np.ndarray[Any, Any], label_N: np.ndarray[Any, Any], traffic: Traffic) -> dict[str, int]:
    """How emitted samples differ from one for each request with the right label."""
    num = len(traffic.label_R)
    negative_R = np.bincount(request_N[label_N == 0], minlength=num)
    positive_R = np.bincount(request_N[label_N == 1], minlength=num)
    return {
        "samples": len(request_N),
        "missing": int(np.sum(negative_R + positive_R == 0)),
        "null_and_match": int(np.sum((negative_R > 0) & (positive_R > 0))),
        "several_matches": int(np.sum(positive_R > 1)),
        "several_nulls": int(np.sum(negative_R > 1)),
        "wrong_label": int(np.sum((positive_R > 0) != (traffic.label_R > 0)) - np.sum(negative_R + positive_R == 0)),
    }


OURS = """
import resource, sys, time
from pathlib import Path
import msgspec, numpy as np
from springtide.app.config.load import load_config
from springtide.stream.join.source import JoinSource
config, number = load_config(Path(sys.argv[1])), int(sys.argv[2])
assert config.join is not None
for _ in sys.stdin:
    start, times, labels, state = time.perf_counter(), [], [], None
    count = 0
    with JoinSource(config.source, config.join, config.schema) as source:
        while count < number:
            for columns in source.poll(1.0):
                times.append(columns.offset_N * 2 + columns.partition_N)
                labels.append(columns.labels_NL[:, 0].astype(np.int8))
                count += len(columns)
                state = columns.joined.state_after(len(columns))
    seconds = time.perf_counter() - start
    np.save(sys.argv[3], np.stack([np.concatenate(times), np.concatenate(labels)]))
    print(count / seconds, len(msgspec.json.encode(state)), flush=True)
"""


class OurColumns:
    """A process that joins the topics to columns, once for each line that it reads."""

    def __init__(self, bench: Bench, name: str, num_samples: int) -> None:
        folder = bench.new_folder()
        bench.configure(name, folder)
        self.file = folder / "samples.npy"
        self.process = subprocess.Popen(
            [sys.executable, "-c", OURS, str(folder / "springtide.toml"), str(num_samples), str(self.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=our_environment(),
        )
        self.state_bytes = 0

    def run(self) -> Run:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with watched_memory(self.process.pid) as memory:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            rate, size = self.process.stdout.readline().split()
        self.state_bytes = int(size)
        return Run(float(rate), max(memory), self.state_bytes / 2**20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def run_trainer(bench: Bench, name: str, num_samples: int) -> Run:
    """Join and learn all by a trainer, versions included; by the clock of its status's process, imports left out."""
    folder = bench.new_folder()
    config = bench.configure(name, folder)
    code = (
        "import sys, time; from pathlib import Path; from springtide.app.config.load import load_config\n"
        "from springtide.app.training.trainer import Trainer\n"
        "trainer = Trainer(load_config(Path(sys.argv[1])), until_end=True); start = time.perf_counter()\n"
        "status = trainer.run(); print(status.samples_trained, time.perf_counter() - start)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "springtide.toml")],
        stdout=subprocess.PIPE,
        text=True,
        env=our_environment(),
    )
    with watched_memory(process.pid) as memory:
        output, _ = process.communicate()
    num, seconds = output.split()[-2:]
    if int(num) != num_samples:
        fail(f"{num} of {num_samples} samples were learned")
    assert config.log.path.is_dir()
    shutil.rmtree(folder)
    return Run(int(num) / float(seconds), max(memory), 0.0)


def our_restart_seconds(bench: Bench, name: str, num_before: int) -> tuple[float, int]:
    """Kill a trainer in the middle; seconds from the next one's start to its first new sample, and where that was."""
    folder = bench.new_folder()
    config = bench.configure(name, folder)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "springtide", "train", "--no-compact"]
        output = (folder / "output").open("ab")
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=our_environment())

    def learned(more_than: int, epoch: int) -> tuple[int, int]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            status = read_status(config.log.path)
            if status is not None and status.epoch >= epoch and status.samples_trained > more_than:
                return status.samples_trained, status.epoch
            time.sleep(0.01)
        return fail("the trainer learns nothing")

    process = start()
    try:
        num, epoch = learned(num_before, 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = time.perf_counter()
        process = start()
        learned(0, epoch + 1)  # the new trainer's status begins with what the version has
        before = (read_status(config.log.path) or fail("no status")).samples_trained
        learned(before, epoch + 1)
        return time.perf_counter() - began, num
    finally:
        process.kill()
        process.wait()


def check(bench: Bench, number: int) -> dict[str, dict[str, int]]:
    """Join disordered traffic by everything; return what differs from the definition."""
    traffic = make_traffic(number, is_disordered=True)
    bench.fill("disordered", traffic)
    errors = {}
    ours = OurColumns(bench, "disordered", number)
    try:
        ours.run()
    finally:
        ours.close()
    position_N, label_N = np.load(ours.file)
    by_partition = [[r for r in traffic.impressions if r[0] == partition] for partition in range(PARTITIONS)]
    request_N = np.array([int(by_partition[n % 2][n // 2][2]) for n in position_N.tolist()])
    errors["ours"] = count_errors(request_N, label_N, traffic)
    if {kind: count for kind, count in errors["ours"].items() if count} != {"samples": number}:
        fail(f"our samples: {errors['ours']}")
    for variant in VARIANTS:
        peer = StreamsPeer(bench, variant)
        try:
            _, file = peer.run("disordered", number + num_more_matches(traffic))
        finally:
            peer.close()
        errors[variant] = count_errors(*read_samples(file), traffic)
    return errors


def num_more_matches(traffic: Traffic) -> int:
    """How many samples a join gives beyond one an impression, which gives one for each match."""
    shown = {key: ms for _, ms, key, _ in traffic.impressions}
    within = sum(-EARLY_MS <= ms - shown[key] <= WINDOW_MS for _, ms, key, _ in traffic.clicks)
    return within - int(traffic.label_R.sum())


def main() -> None:
    options = arguments(__doc__)
    number, repeats = (40_000, 1) if options.quick else (400_000, 3)
    try:
        fetch_jars("kafka-streams", STREAMS)
    except KafkaNotAvailableError as error:
        print(f"Kafka Streams is missing: {error}")
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder))
        try:
            measure(bench, number, repeats, options)
        finally:
            bench.close()


def measure(bench: Bench, number: int, repeats: int, options: Any) -> None:
    document = describe_run(
        "ingest.streams",
        options,
        packages=("kafka-python", "numba", "numpy", "torch"),
        peers={"kafka-streams": VERSION, "java": java_version()},
    )
    errors = check(bench, number // 4)
    for name, found in errors.items():
        print(f"{name}: {found}", flush=True)
    bench.fill("ordered", make_traffic(number, is_disordered=False))
    ours = OurColumns(bench, "ordered", number)
    peers = {variant: StreamsPeer(bench, variant) for variant in VARIANTS}
    runs: dict[str, list[Run]] = {name: [] for name in ("to columns", "learned", *VARIANTS)}
    try:
        for repeat in range(repeats + 1):  # the first one warms up
            found = {"to columns": ours.run(), "learned": run_trainer(bench, "ordered", number)}
            found |= {variant: peer.run("ordered", number)[0] for variant, peer in peers.items()}
            for name, run in found.items() if repeat else ():
                runs[name].append(run)
        restarts: dict[str, Any] = {}
        for variant, peer in peers.items():
            seconds, num, file = peer.restart_seconds("ordered", number // 2)
            request_N, _ = read_samples(file)
            repeated = len(request_N) - len(np.unique(request_N))
            restarts[variant] = {"seconds": seconds, "after_samples": num, "emitted_again_at_least": repeated}
        seconds, num = our_restart_seconds(bench, "ordered", number // 2)
        restarts["learned"] = {"seconds": seconds, "after_samples": num, "emitted_again_at_least": 0}
    finally:
        ours.close()
        for peer in peers.values():
            peer.close()
    rates = {name: [run.samples_per_second for run in found] for name, found in runs.items()}
    cases = []
    for what in ("to columns", "learned"):
        for variant in VARIANTS:
            case = f"{what}, beside Kafka Streams, {DESCRIBED[variant]}"
            cases.append(Case(case, "impressions/s", rates[what], {variant: rates[variant]}, needed=1.0))
    for case in cases:
        print(describe_case(case))
    for name, found in runs.items():
        memory = statistics.median(run.memory_mib for run in found)
        disk = statistics.median(run.disk_mib for run in found)
        broker = statistics.median(run.broker_mib for run in found)
        restart = restarts.get(name)
        print(
            f"{name}: {memory:.0f} MiB resident, {disk:.3f} MiB of state, {broker:.0f} MiB of changelogs; "
            f"restart {restart}"
        )
    save(
        options,
        document
        | {
            "impressions": number,
            "load_average": os.getloadavg(),
            "errors": errors,
            "runs": {name: [asdict(run) for run in found] for name, found in runs.items()},
            "restarts": restarts,
            "cases": [asdict(case) for case in cases],
        },
    )


def java_version() -> str:
    """The version of the Java that is on PATH."""
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[0]


if __name__ == "__main__":
    main()
