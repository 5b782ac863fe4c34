"""Disks that are full, read-only or slow: learning waits and says why, and goes on as if nothing had been."""

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.config.load import load_config
from app.training.trainer import Trainer
from app.version_log import trainer_status as status_file
from app.version_log.trainer_status import read_status
from stream.broker.embedded import EmbeddedBroker
from stream.kafka.admin import Admin
from stream.kafka.config import KafkaConfig
from stream.kafka.producer import Producer
from tests.support.waiting import wait_until
from tests.torture.clicks import message
from tests.torture.cluster.config import TOPIC, write_config
from tests.torture.verify.verifier import LogVerifier

SEED = 3


class Room:
    """A trainer in a thread, its broker, and a judge."""

    def __init__(self, folder: Path, broker: EmbeddedBroker) -> None:
        (folder / "disk").mkdir()
        self.config = load_config(write_config(folder / "springtide.toml", folder, address=broker.address))
        self.judge = LogVerifier(self.config.log.path, folder, SEED)
        self.kafka = KafkaConfig(bootstrap_servers=broker.address)
        self.num_produced = 0
        with Admin(self.kafka) as admin:
            admin.ensure_topic(TOPIC)
        self.produce(640)
        self.start()

    def start(self) -> None:
        self.trainer = Trainer(self.config)
        self.ended: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=lambda: self.ended.append(self.trainer.run()))
        self._thread.start()

    def stop(self) -> None:
        self.trainer.stop()
        self._thread.join(60)
        assert self.ended, "the trainer failed"

    @property
    def num_samples(self) -> int:
        return self.trainer.state.samples_trained

    def produce(self, number: int) -> None:
        with Producer(self.kafka) as producer:
            for offset in range(self.num_produced, self.num_produced + number):
                producer.send(TOPIC, message(SEED, offset))
            producer.flush()
        self.num_produced += number

    def says(self, condition: str, reason: str) -> bool:
        told = read_status(self.config.log.path) or {}
        return told.get("trainer") == condition and reason in told.get("reason", "")

    def learn_all(self) -> None:
        """All but what no whole batch is left for."""
        wait_until(lambda: self.num_samples >= self.num_produced * 95 // 97 - 64, "learning")

    def end(self) -> None:
        self.stop()
        self.judge.compare_with_reference(self.judge.verify())


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        made = Room(tmp_path, broker)
        yield made
        made.trainer.stop()
        made.judge.close()


@contextmanager
def refusing(log: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can be added to the log's files, nor any made; a status can be written over."""
    write, atomically = os.write, status_file.write_atomically

    def refuse(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(log)):
            raise OSError(number, os.strerror(number))
        return write(descriptor, data)

    def refuse_whole(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr(status_file, "write_atomically", refuse_whole)
    yield
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(status_file, "write_atomically", atomically)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS] if "TORTURE_EXAMPLES" in os.environ else [errno.ENOSPC])
def test_a_disk_that_takes_no_versions_pauses_learning_until_it_does(
    room: Room, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.learn_all()
    files = len(list(room.config.log.path.glob("seg-*")))
    with refusing(room.config.log.path, number, monkeypatch):
        room.produce(2_000)
        wait_until(lambda: room.says("waiting", os.strerror(number)), "the reason")
        stuck = room.num_samples
        wait_until(
            lambda: room.trainer.log._queue and room.says("waiting", os.strerror(number)), "a version that waits"
        )
        room.judge.verify()  # the last version is whole
        room.produce(1_000)
        assert room.num_samples - stuck <= 2 * 64, "it learns on without a log"
    room.learn_all()
    wait_until(lambda: not room.says("waiting", ""), "the end of waiting")
    assert len(list(room.config.log.path.glob("seg-*"))) <= files + 1, "every try leaves a file"
    room.end()


def test_a_slow_disk_slows_learning_and_loses_nothing(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.3)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    room.produce(3_000)
    room.learn_all()
    monkeypatch.setattr(os, "fsync", fsync)
    room.end()


def test_a_spill_that_takes_no_rows_pauses_learning_within_the_batch(room: Room) -> None:
    spill: Any = room.trainer.state.learner.table.parts.spill
    worker = spill._worker
    worker.patience_seconds = 0.2
    worker.catalog.queue_bytes = 1 << 12
    wait_until(lambda: worker._process is not None and spill.counters()["spill_written"], "a first write")
    limit: Callable[[int], None] = lambda size: resource.prlimit(  # noqa: E731
        worker._process.popen.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)
    )
    limit(1 << 14)
    room.produce(3_000)
    wait_until(lambda: room.says("waiting", "raise the limit"), "the reason")
    stuck = room.num_samples
    wait_until(lambda: read_status(room.config.log.path)["samples_trained"] == stuck, "the news of it")
    assert room.num_samples == stuck
    limit(resource.RLIM_INFINITY)
    room.learn_all()
    assert room.num_samples > stuck
    room.end()


def test_asked_to_stop_a_trainer_that_waits_for_its_spill_stops(room: Room) -> None:
    spill: Any = room.trainer.state.learner.table.parts.spill
    worker = spill._worker
    worker.patience_seconds = 0.2
    worker.catalog.queue_bytes = 1 << 12
    wait_until(lambda: worker._process is not None and spill.counters()["spill_written"], "a first write")
    resource.prlimit(worker._process.popen.pid, resource.RLIMIT_FSIZE, (1 << 14, resource.RLIM_INFINITY))
    room.produce(3_000)
    wait_until(lambda: room.says("waiting", "raise the limit"), "the reason")
    room.stop()
    room.start()
    room.learn_all()
    room.end()
