"""The brokers that the benchmarks of this folder read from, one after the other, each filled with the same events."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.config import SourceConfig
from tests.bench.harness.report import argument_parser
from tests.bench.workloads.events import TOPIC, fill_events

LOOPBACK = "127.0.0.1:", "localhost:", "[::1]:"


class Topic:
    """The topic of events on one broker."""

    def __init__(self, broker: str, address: str, log: Path | None) -> None:
        self.broker, self.address, self.log = broker, address, log

    def source_config(self) -> SourceConfig:
        """The configuration that a user of this broker has."""
        if self.log is not None:
            return SourceConfig(topic=TOPIC, log_path=self.log)
        return SourceConfig(topic=TOPIC, bootstrap_servers=self.address)


def ingest_arguments(description: str | None) -> argparse.Namespace:
    """Parse the arguments of every benchmark, and `--bootstrap`."""
    parser = argument_parser(description)
    parser.add_argument(
        "--bootstrap", help="HOST:PORT of an Apache Kafka broker on this machine, without a topic `events`: read it too"
    )
    options = parser.parse_args()
    if options.bootstrap and not options.bootstrap.startswith(LOOPBACK):
        parser.error("--bootstrap: a broker on this machine, such as 127.0.0.1:9092")
    return options


def filled_topics(options: argparse.Namespace, num_records: int) -> Iterator[Topic]:
    """Fill and yield the topic of one broker after the other."""
    with embedded_topic() as topic:
        fill_events(topic.address, num_records)
        yield topic
    if options.bootstrap:
        fill_events(options.bootstrap, num_records)
        yield Topic("Apache Kafka", options.bootstrap, None)


@contextmanager
def embedded_topic() -> Iterator[Topic]:
    """Start an embedded broker for the time of the context."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        yield Topic("embedded", broker.address, Path(folder))
