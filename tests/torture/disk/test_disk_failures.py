"""Disks that are full, read-only or slow: learning waits, reports why, and continues without loss."""

import contextlib
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

from springtide.app.config.load import load_config
from springtide.app.training.trainer import Trainer
from springtide.app.version_log import trainer_status as status_file
from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from tests.support.scale import IS_LONG
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.torture.clicks import message
from tests.torture.cluster.config import TOPIC, TORTURED, write_settings
from tests.torture.verify.verifier import LogVerifier

SEED = 3


class RunningTrainer:
    """A trainer in a thread, its broker, and a verifier of its log."""

    def __init__(self, folder: Path, broker: EmbeddedBroker) -> None:
        (folder / "disk").mkdir()
        self.config = load_config(write_settings(folder, broker.address, TORTURED))
        self.verifier = LogVerifier(self.config.log.path, folder, SEED)
        self.kafka = KafkaConfig(bootstrap_servers=broker.address)
        self.num_produced = 0
        with Admin(self.kafka, patient=True) as admin:
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
        self._thread.join(DEADLINE_SECONDS)
        assert self.ended, "the trainer failed"

    @property
    def num_samples(self) -> int:
        return self.trainer.state.samples_trained

    def produce(self, number: int) -> None:
        with Producer(self.kafka, patient=True) as producer:
            for offset in range(self.num_produced, self.num_produced + number):
                producer.send(TOPIC, message(SEED, offset))
            producer.flush()
        self.num_produced += number

    def reports(self, state: str, reason: str) -> bool:
        """Return True if the status has this state and a reason that contains this text."""
        status = read_status(self.config.log.path) or TrainerStatus()
        return status.trainer == state and reason in status.reason

    def learn_all(self) -> None:
        """Wait until all whole batches are learned."""
        wait_until(lambda: self.num_samples >= self.num_produced * 95 // 97 - 64, "learning")

    def stop_and_compare(self) -> None:
        self.stop()
        self.verifier.verify()
        self.verifier.compare_with_reference()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningTrainer]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        made = RunningTrainer(tmp_path, broker)
        yield made
        made.trainer.stop()
        made.verifier.close()


@contextmanager
def failing_disk(log: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail every write to the log's files and every new file; the status can still be replaced."""
    write, atomically = os.writev, status_file.write_atomically

    def fail_write(descriptor: int, pieces: list[memoryview]) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(log)):
            raise OSError(number, os.strerror(number))
        return write(descriptor, pieces)

    def fail_file(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "writev", fail_write)
    monkeypatch.setattr(status_file, "write_atomically", fail_file)
    yield
    monkeypatch.setattr(os, "writev", write)
    monkeypatch.setattr(status_file, "write_atomically", atomically)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS] if IS_LONG else [errno.ENOSPC])
def test_a_full_or_read_only_disk_pauses_learning_until_it_is_writable(
    running: RunningTrainer, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.learn_all()
    files = len(list(running.config.log.path.glob("seg-*")))
    with failing_disk(running.config.log.path, number, monkeypatch):
        running.produce(2_000)
        wait_until(lambda: running.reports("waiting", os.strerror(number)), "the reason")
        stuck = running.num_samples
        wait_until(
            lambda: running.trainer.log._queue and running.reports("waiting", os.strerror(number)),
            "a version that waits",
        )
        running.verifier.verify()  # the last version is whole
        running.produce(1_000)
        assert running.num_samples - stuck <= 2 * 64, "it continues to learn without a log"
    running.learn_all()
    wait_until(lambda: not running.reports("waiting", ""), "the end of waiting")
    assert len(list(running.config.log.path.glob("seg-*"))) <= files + 1, "every retry leaves a file"
    running.stop_and_compare()


def test_a_slow_disk_slows_learning_and_loses_nothing(running: RunningTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.3)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    running.produce(3_000)
    running.learn_all()
    monkeypatch.setattr(os, "fsync", fsync)
    running.stop_and_compare()


def limited_spills(running: RunningTrainer) -> Callable[[int], None]:
    """Wait until every table has spilled rows; return how the size of their files is limited.

    Limit it again while waiting: a process that does not respond for 2 s, on a busy machine, is replaced.
    """
    spills: list[Any] = [one.spill for one in running.trainer.state.learner.table.tables.values()]
    for spill in spills:
        worker = spill._worker
        worker.patience_seconds = 2
        # the table sets the limit of the queue anew every 64 batches, from this
        worker._max_queue_bytes = worker.catalog.queue_bytes = 1 << 12
        wait_until(
            lambda worker=worker, spill=spill: worker._process is not None and spill.counters()["spill_written"],
            "a first write",
        )

    def limit(size: int) -> None:
        for spill in spills:
            with contextlib.suppress(ProcessLookupError):
                pid = spill._worker._process.popen.pid
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return limit


def test_a_full_spill_pauses_learning_before_the_batch(running: RunningTrainer) -> None:
    limit = limited_spills(running)
    limit(1 << 12)
    running.produce(3_000)

    def is_stuck() -> bool:
        limit(1 << 12)
        reports = running.reports("waiting", "raise the limit")
        return reports and read_status(running.config.log.path).samples_trained == running.num_samples

    wait_until(is_stuck, "the reason")
    stuck = running.num_samples
    limit(resource.RLIM_INFINITY)
    running.learn_all()
    assert running.num_samples > stuck
    running.stop_and_compare()


def test_a_trainer_that_waits_for_its_spill_can_be_stopped(running: RunningTrainer) -> None:
    limit = limited_spills(running)
    limit(1 << 12)
    running.produce(3_000)

    def is_stuck() -> bool:
        limit(1 << 12)
        return running.reports("waiting", "raise the limit")

    wait_until(is_stuck, "the reason")
    running.stop()
    running.start()
    running.learn_all()
    running.stop_and_compare()
