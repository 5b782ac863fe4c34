"""A replay against the embedded broker: order, partitions, keys, timestamps, limits."""

import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from springtide.app.errors import UserError
from springtide.app.tools.progress_bar import ProgressBar
from springtide.app.tools.replay import Replay, ReplayConfig
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.config import SourceConfig
from springtide.stream.history.input_file import encode_json
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.producer import Producer, partition_of_key
from springtide.stream.positions import Partition
from tests.support.waiting import DEADLINE_SECONDS


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SourceConfig]:
    with EmbeddedBroker(tmp_path / "log"):
        yield SourceConfig(topic="clicks", log_path=tmp_path / "log")


def write(tmp_path: Path, num: int) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_text("n,user\n" + "".join(f"{n},u{n % 3}\n" for n in range(num)))
    return path


def replay(source: SourceConfig, **settings: object) -> int:
    assert source.log_path is not None
    config = ReplayConfig(**settings)  # type: ignore[arg-type]
    run = Replay(config, source, log_path=source.log_path, progress=ProgressBar(stream=io.StringIO()))
    return run.run(threading.Event())


def read(source: SourceConfig, num: int, num_partitions: int = 1) -> dict[int, list[tuple[int, int]]]:
    """(n of the record, its timestamp) by partition."""
    partitions = [Partition(source.topic, number) for number in range(num_partitions)]
    reader = PartitionConsumer(source.kafka_config(), dict.fromkeys(partitions, 0))
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(num_partitions)}
    deadline = time.monotonic() + DEADLINE_SECONDS
    while sum(map(len, found.values())) < num:
        assert time.monotonic() < deadline
        for raw in reader.poll(0.1):
            for n, record_ms in enumerate(raw.record_ms_N.tolist()):
                value = raw.value(n)
                assert value is not None
                found[raw.partition.number].append((int(json.loads(value)["n"]), record_ms))
    reader.close()
    return found


def test_the_topic_is_created_with_one_partition_and_holds_the_file_in_order(
    tmp_path: Path, source: SourceConfig
) -> None:
    before_ms = int(time.time() * 1000)
    assert replay(source, path=write(tmp_path, 2_000)) == 2_000
    with Admin(source.kafka_config()) as admin:
        topic = admin.require_topic("clicks")
    assert topic.num_partitions == 1
    records = read(source, 2_000)[0]
    assert [n for n, _ in records] == list(range(2_000))
    assert all(before_ms <= record_ms <= int(time.time() * 1000) for _, record_ms in records)


def test_a_limit_ends_an_endless_loop(tmp_path: Path, source: SourceConfig) -> None:
    assert replay(source, path=write(tmp_path, 10), loop=True, limit=25) == 25
    assert [n for n, _ in read(source, 25)[0]] == [*range(10), *range(10), *range(5)]


def test_with_a_key_all_records_of_one_key_share_a_partition_in_order(tmp_path: Path, source: SourceConfig) -> None:
    replay(source, path=write(tmp_path, 300), partitions=4, key="user")
    found = read(source, 300, 4)
    users = [{n % 3 for n, _ in records} for records in found.values()]
    assert sum(map(len, users)) == 3
    assert all([n for n, _ in records] == sorted(n for n, _ in records) for records in found.values())


def test_another_number_of_partitions_than_the_topic_has_is_rejected(tmp_path: Path, source: SourceConfig) -> None:
    replay(source, path=write(tmp_path, 3))
    with pytest.raises(UserError, match="exists with 1"):
        replay(source, path=write(tmp_path, 3), partitions=2)


def test_a_rate_is_kept(tmp_path: Path, source: SourceConfig) -> None:
    began = time.monotonic()
    replay(source, path=write(tmp_path, 100), rate=200.0)
    assert time.monotonic() - began >= 0.45


def test_a_stopped_replay_sends_nothing_more(tmp_path: Path, source: SourceConfig) -> None:
    stopping = threading.Event()
    stopping.set()
    config = ReplayConfig(path=write(tmp_path, 10))
    assert source.log_path is not None
    run = Replay(config, source, log_path=source.log_path, progress=ProgressBar(stream=io.StringIO()))
    assert run.run(stopping) == 0


@pytest.mark.parametrize(("partitions", "key"), [(1, None), (3, None), (3, "user")])
def test_a_replay_goes_on_where_the_topic_ends(
    tmp_path: Path, source: SourceConfig, partitions: int, key: str | None
) -> None:
    path = write(tmp_path, 500)
    replay(source, path=path, partitions=partitions, key=key, limit=123)
    with Producer(source.kafka_config()) as producer:  # one partition is further than the others
        at = 123 % partitions if key is None else partition_of_key(b"u0", partitions)
        producer.send("clicks", encode_json({"n": "123", "user": "u0"}), key=b"u0" if key else None, partition=at)
        producer.flush()
    assert replay(source, path=path, resume=True, key=key) == 500 - 124
    assert replay(source, path=path, resume=True, key=key) == 0
    found = read(source, 500, partitions)
    assert sorted(n for records in found.values() for n, _ in records) == list(range(500))
    assert all([n for n, _ in records] == sorted(n for n, _ in records) for records in found.values())


def test_a_replay_into_an_empty_topic_has_nothing_to_resume(tmp_path: Path, source: SourceConfig) -> None:
    assert replay(source, path=write(tmp_path, 10), resume=True) == 10


def test_a_topic_that_holds_something_else_is_not_resumed(tmp_path: Path, source: SourceConfig) -> None:
    path = write(tmp_path, 10)
    replay(source, path=path, limit=5)
    other = tmp_path / "other.csv"
    other.write_text(path.read_text().replace("3,u0", "3,u9"))
    with pytest.raises(UserError, match=r"record 3 of clicks/0 is not row 4 of other\.csv"):
        replay(source, path=other, resume=True)
    replay(source, path=path)
    with pytest.raises(UserError, match=r"has fewer rows|is not row"):
        replay(source, path=path, resume=True)
    with pytest.raises(ValueError, match="--loop"):
        ReplayConfig(path=path, loop=True, resume=True)
