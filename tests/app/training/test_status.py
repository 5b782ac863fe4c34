"""The status file is written every second, also while the trainer is silent; it says what it waits for and misses."""

import pytest

from springtide.app.training import status as status_module
from springtide.app.training.status import StatusWriter
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.trainer_status import GateStatus, TrainerStatus, read_status, successor
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.support.waiting import wait_until


def test_a_stall_is_reported_while_the_trainer_is_silent_and_goes_when_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(status_module, "INTERVAL_SECONDS", 0.01)
    stalls: list[str] = []
    status_writer = StatusWriter(tmp_path, 1)
    status_writer.stall_reason = lambda: stalls[-1] if stalls else ""
    status_writer.update(TrainerStatus(trainer="running", version=7))

    def status() -> TrainerStatus:
        return read_status(tmp_path) or TrainerStatus()

    stalls.append("the spill is full")
    wait_until(lambda: (status().trainer, status().reason) == ("waiting", "the spill is full"), "the reason")
    assert status().version == 7
    stalls.clear()
    wait_until(lambda: (status().trainer, status().reason) == ("running", ""), "the end of the stall")
    final = status_writer.close(TrainerStatus(trainer="stopped"))
    assert (final.trainer, final.epoch) == ("stopped", 1)
    assert read_status(tmp_path) == final


def test_a_failure_keeps_the_rest_of_the_status(tmp_path):
    status_writer = StatusWriter(tmp_path, 3)
    status_writer.update(TrainerStatus(trainer="running", samples_trained=5, samples_per_second=2.0))
    status_writer.fail(ValueError("two\nlines"))
    status = read_status(tmp_path)
    assert status is not None
    assert (status.trainer, status.reason, status.samples_trained) == ("failed", "two lines", 5)
    assert (status.samples_per_second, status.epoch) == (0.0, 3)


def test_a_status_that_cannot_be_written_is_signed_all_the_same(tmp_path):
    final = StatusWriter(tmp_path / "removed", 2).close(TrainerStatus(trainer="stopped"))
    assert (final.epoch, final.trainer) == (2, "stopped")
    assert final.pid > 0
    assert final.updated_ms > 0


def test_the_next_trainer_reports_what_its_predecessor_learned_until_it_has_read_the_log():
    previous = TrainerStatus(
        name="old", epoch=4, pid=1, host="h", boot_id="b", updated_ms=1, trainer="stopped", clean_shutdown=True,
        version=9, samples_trained=700, samples_per_second=5.0, gate=GateStatus(state="holding", trips=2),
    )  # fmt: skip
    status = successor(previous, name="new", reason="reading the log back")
    assert (status.name, status.trainer, status.reason) == ("new", "catching_up", "reading the log back")
    assert (status.samples_trained, status.version) == (700, 9)
    assert (status.samples_per_second, status.clean_shutdown, status.gate) == (0.0, False, GateStatus())
    assert (status.epoch, status.pid, status.host, status.boot_id, status.updated_ms) == (0, 0, "", "", 0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [(line.features, line.samples) for line in caplog.records if "fields without any value" in line.message]


@pytest.fixture
def misspelt(env):
    """A topic of two partitions whose records have an `age` and no `aeg`."""
    env.configure({"schema": {"dense": ["age", "aeg"]}})
    env.create(partitions=2)
    return env


def test_a_feature_that_no_sample_has_is_named_once_in_the_log(misspelt, monkeypatch, caplog):
    monkeypatch.setattr("springtide.app.training.status.NUM_FIRST_SAMPLES", 100)
    monkeypatch.setattr("springtide.app.training.status.REPORT_SECONDS", 0.0)
    misspelt.produce(300)
    Trainer(misspelt.config, until_end=True).run()
    assert warnings(caplog) == [("aeg", 128)]


def test_many_ranks_warn_once_of_what_none_of_them_has_seen(misspelt, caplog):
    misspelt.produce(100)
    misspelt.produce(100, partition=1)
    on_trainers(misspelt, 2, until_end=True)
    assert warnings(caplog) == [("aeg", 200)]
