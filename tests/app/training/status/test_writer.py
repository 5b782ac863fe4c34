"""The status file is written every second, also while the trainer is silent, and then says what it waits for."""

from app.training.status import writer
from app.training.status.writer import StatusWriter
from app.version_log.trainer_status import TrainerStatus, read_status
from tests.support.waiting import wait_until


def test_a_stall_is_reported_while_the_trainer_is_silent_and_goes_when_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "INTERVAL_SECONDS", 0.01)
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
