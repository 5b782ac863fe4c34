"""ingest.raw: a million records of 200 bytes from one partition, offsets and CRC checked, beside other Kafka clients.

Ours is the consumer of the product's source, without decoding: arrays that say where each record lies. A client is
timed from its construction to the last record. Two rates each: by the clock, and by the client's processor time.
"""

# N records
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.config import SourceConfig
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.positions import Partition
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.report import Case, alternate, fail, report, use_trainer_process_settings
from tests.bench.ingest.brokers import Topic, filled_topics, ingest_arguments
from tests.bench.workloads.events import TOPIC

CONFLUENT = "confluent, tuned"
# by the clock and, where there is a second number, by processor time
NEEDED: dict[str, tuple[float | None, float | None]] = {
    CONFLUENT: (1.05, 1.5),
    "confluent, tuned, no CRC": (1.05, 1.5),
    "aiokafka": (None, None),
    "kafka-python and crc32c": (8.0, None),
    "kafka-python as installed": (8.0, None),
}
# part of the records that slow clients read, which would take minutes otherwise
PARTS = {"kafka-python and crc32c": 5, "kafka-python as installed": 20}


def read_ours(config: SourceConfig, num_records: int, take: Callable[[RawRecords], object]) -> tuple[float, float]:
    """Read the first records; return the time and the processor time at which the last one was there."""
    consumer = PartitionConsumer(
        config.kafka_config(), {Partition(TOPIC, 0): 0}, wait_for_gaps=config.uses_embedded_broker
    )
    try:
        offset = 0
        while offset < num_records:
            raws = consumer.poll(10.0)
            if not raws:
                raise TimeoutError(f"{offset} of {num_records} records")
            for raw in raws:
                if not np.array_equal(raw.offset_N, np.arange(offset, offset + len(raw))):
                    fail(f"the offsets after {offset}")
                offset = raw.end
                take(raw)
        return time.perf_counter(), time.process_time()
    finally:
        consumer.close()


def digest_ours(config: SourceConfig, num_records: int) -> str:
    """SHA-256 of the values of the first records."""
    digest = sha256()

    def take(raw: RawRecords) -> None:
        for n in range(len(raw.before(num_records))):
            digest.update(raw.value(n) or b"")

    read_ours(config, num_records, take)
    return digest.hexdigest()


def check(topic: Topic, peers: Peers, num_records: int) -> None:
    """Check that every client gives the same values, with offsets that count from 0."""
    digests: dict[int, str] = {}
    for name, peer in peers.installed.items():
        number = num_records // PARTS.get(name, 1)
        if number not in digests:
            digests[number] = digest_ours(topic.source_config(), number)
        if peer.call("digest_read", peer=name, address=topic.address, num_records=number) != digests[number]:
            fail(f"the values of {name} from {topic.broker}")


def measure(topic: Topic, peers: Peers, num_records: int, repeats: int) -> list[Case]:
    """Let all clients read the topic in turn."""
    cpu_rates: dict[str, list[float]] = {}

    def run_ours() -> float:
        cpu, start = time.process_time(), time.perf_counter()
        end, cpu_end = read_ours(topic.source_config(), num_records, lambda raw: None)
        cpu_rates.setdefault("ours", []).append(num_records / (cpu_end - cpu))
        return num_records / (end - start)

    def run_peer(name: str) -> float:
        number = num_records // PARTS.get(name, 1)
        found: dict[str, Any] = peers.installed[name].call(
            "run_read", peer=name, address=topic.address, num_records=number
        )
        cpu_rates.setdefault(name, []).append(number / found["cpu_seconds"])
        return float(number / found["seconds"])

    contenders = {"ours": run_ours} | {name: partial(run_peer, name) for name in peers.installed}
    rates = alternate(contenders, repeats=repeats)
    cpu_rates = {name: found[1:] for name, found in cpu_rates.items()}  # the first one was the warm-up
    cases = []
    for name in peers.installed:
        of_clock, of_processor = NEEDED[name]
        case = f"{topic.broker}, against {name}"
        cases.append(Case(case, "records/s", rates["ours"], {name: rates[name]}, needed=of_clock))
        case += ", by processor time"
        cases.append(Case(case, "records/s", cpu_rates["ours"], {name: cpu_rates[name]}, needed=of_processor))
    return cases


def main() -> None:
    options = ingest_arguments(__doc__)
    use_trainer_process_settings()
    num_records, repeats = (50_000, 2) if options.quick else (1_000_000, 5)
    cases: list[Case] = []
    with Peers(dict.fromkeys(NEEDED, "ingest"), venvs=options.peers, threads=2) as peers:
        for topic in filled_topics(options, num_records):
            check(topic, peers, num_records)
            cases += measure(topic, peers, num_records, repeats)
        report(
            "ingest.raw", cases, options, packages=("kafka-python", "crc32c", "numpy", "numba"), peers=peers.versions
        )
