"""ingest.columns: the records of ingest.raw to typed columns of NumPy, beside tuned confluent with decoders of JSON.

Ours is the product's source: consumer, parser, queue. A peer is timed from the client's construction to the last
column.
"""

# N records
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from springtide.stream.columns import Columns
from springtide.stream.positions import Partition
from springtide.stream.source import KafkaSource
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.report import Case, alternate, fail, report, use_trainer_process_settings
from tests.bench.ingest.brokers import Topic, filled_topics, ingest_arguments
from tests.bench.workloads.events import SCHEMA, TOPIC

NEEDED = 2.5
PEERS = "msgspec", "orjson", "pyarrow"  # each behind tuned confluent


def read_columns(topic: Topic, num_records: int) -> tuple[list[Columns], float, float]:
    """Read and decode the first records; return the time and the processor time at which the last one was there."""
    with KafkaSource(topic.source_config(), SCHEMA) as source:
        source.stop_at({Partition(TOPIC, 0): num_records})
        parts: list[Columns] = []
        count = 0
        while count < num_records:
            polled = source.poll(10.0)
            if not polled:
                raise TimeoutError(f"{count} of {num_records} records")
            parts += polled
            count += sum(map(len, polled))
        return parts, time.perf_counter(), time.process_time()


def arrays_of(parts: list[Columns]) -> dict[str, Any]:
    """The columns as a peer saves them."""
    return {
        "ids": np.concatenate([part.features.categorical_NC for part in parts]),
        "numbers": np.concatenate([part.features.dense_NF for part in parts]),
        "ms": np.concatenate([part.event_ms_N for part in parts]),
        "labels": np.concatenate([part.labels_NL[:, 0] for part in parts]),
    }


def check_columns(ours: dict[str, Any], path: Path, name: str) -> None:
    """Compare columns that a peer has saved with ours: bitwise."""
    with np.load(path) as theirs:
        for kind, array in ours.items():
            if array.dtype != theirs[kind].dtype or not np.array_equal(array, theirs[kind]):
                fail(f"{kind} of {name}")


def check(topic: Topic, peers: Peers, num_records: int) -> None:
    """Compare every record's columns."""
    ours = arrays_of(read_columns(topic, num_records)[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "columns.npz"
        for name, peer in peers.installed.items():
            peer.call("run_columns", peer=name, address=topic.address, num_records=num_records, path=str(path))
            check_columns(ours, path, name)


def measure(topic: Topic, peers: Peers, num_records: int, repeats: int) -> list[Case]:
    """Let all read the topic in turn, by the clock and by processor time."""
    cpu_rates: dict[str, list[float]] = {}

    def run_ours() -> float:
        cpu, start = time.process_time(), time.perf_counter()
        _, end, cpu_end = read_columns(topic, num_records)
        cpu_rates.setdefault("ours", []).append(num_records / (cpu_end - cpu))
        return num_records / (end - start)

    def run_peer(name: str) -> float:
        found: dict[str, Any] = peers.installed[name].call(
            "run_columns", peer=name, address=topic.address, num_records=num_records
        )
        cpu_rates.setdefault(name, []).append(num_records / found["cpu_seconds"])
        return float(num_records / found["seconds"])

    contenders = {"ours": run_ours} | {name: partial(run_peer, name) for name in peers.installed}
    rates = alternate(contenders, repeats=repeats)
    cpu_rates = {name: found[1:] for name, found in cpu_rates.items()}  # the first one was the warm-up
    return [
        Case(
            f"{topic.broker}, against confluent, tuned, and {name}{how}",
            "records/s",
            found["ours"],
            {name: found[name]},
            needed=needed,
        )
        for how, found, needed in (("", rates, NEEDED), (", by processor time", cpu_rates, None))
        for name in peers.installed
    ]


def main() -> None:
    options = ingest_arguments(__doc__)
    use_trainer_process_settings()
    num_records, repeats = (50_000, 2) if options.quick else (1_000_000, 5)
    cases: list[Case] = []
    with Peers(dict.fromkeys(PEERS, "ingest"), venvs=options.peers, threads=2) as peers:
        for topic in filled_topics(options, num_records):
            check(topic, peers, num_records)
            cases += measure(topic, peers, num_records, repeats)
        packages = ("kafka-python", "crc32c", "msgspec", "numpy", "numba")
        report("ingest.columns", cases, options, packages=packages, peers=peers.versions)
