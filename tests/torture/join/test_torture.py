"""A short torture of the join, and other interleavings; `python -m tests.torture.join` is the long one."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from springtide.app.config.load import load_config
from springtide.app.training.trainer import Trainer
from springtide.stream.source import KafkaSource
from tests.support.config import Section
from tests.support.process_pool import ProcessPool
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.join.expected import Expected
from tests.torture.join.feeder import Feeder
from tests.torture.join.torture import WINDOW_SAMPLES, JoinTorture, configure
from tests.torture.join.traffic import Traffic
from tests.torture.verify.log_contents import LogContents, read_log_contents

NUM, PER_MS, NUM_KILLS = 8_000, 0.2, 3


def test_a_trainer_killed_at_steps_of_the_joins_protocol_learns_what_the_definition_says(
    tmp_path: Path, process_pool: ProcessPool
) -> None:
    lines: list[str] = []
    torture = JoinTorture(tmp_path, Traffic(5, NUM, PER_MS), process_pool, lines.append)
    try:
        figures = torture.run(NUM_KILLS)
        assert figures["samples"] > NUM
        assert min(figures["clicked"], figures["duplicates"], figures["dead_letters"]["late"], figures["versions"]) > 50
    finally:
        torture.close()
        print("\n".join(lines))


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    return Traffic(6, NUM, PER_MS)


@pytest.fixture(scope="module")
def address(traffic: Traffic) -> Iterator[str]:
    """Of a broker that has the whole traffic."""
    broker = FaultyBroker()
    try:
        Feeder(traffic, broker.address).end()
        yield broker.address
    finally:
        broker.close()


def learn(folder: Path, address: str, *layers: Section) -> LogContents:
    """Learn the topics to their ends in this process, by one thread."""
    config = load_config(configure(folder, address, *layers))
    torch.manual_seed(config.train.seed)
    Trainer(config, until_end=True).run()
    return read_log_contents(config.log.path, window_samples=WINDOW_SAMPLES)


def test_another_interleaving_of_the_partitions_gives_the_same_bits(
    tmp_path: Path, traffic: Traffic, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learn(tmp_path / "one", address)
    assert one.meta.samples_trained == len(Expected.of(traffic, {}).samples["due_ms"])
    draw, poll = random.Random(1), KafkaSource.poll

    def poll_at_random(source: KafkaSource, seconds: float) -> list[Any]:
        """A reader gives nothing in two polls of three, as if its partitions were slow, and another one each time."""
        return poll(source, seconds) if draw.random() < 0.33 else []

    monkeypatch.setattr(KafkaSource, "poll", poll_at_random)
    small = {"source": {"queue_bytes": 4_000, "fetch_wait_ms": 1}}
    for name, layers in (("other", []), ("small", [small])):
        other = learn(tmp_path / name, address, *layers)
        assert one.differences(other) == []
        assert other.meta.samples_trained == one.meta.samples_trained
        assert other.meta.dead_letters == one.meta.dead_letters
