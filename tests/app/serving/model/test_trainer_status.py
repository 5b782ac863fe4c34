import json

from springtide.app.serving.model.trainer_status import TrainerStatusReader


def write(log, number, /, **status):
    draft = log / ".draft"
    draft.write_text(json.dumps(status))
    draft.rename(log / f"status-{number:010d}.json")


def test_without_a_log_the_trainer_is_stopped_with_a_reason(tmp_path):
    status = TrainerStatusReader(tmp_path / "none").read(now_ms=0)
    assert status.trainer == "stopped"
    assert "no trainer" in status.reason


def test_the_status_of_the_highest_epoch_counts(tmp_path):
    reader = TrainerStatusReader(tmp_path)
    write(tmp_path, 9, trainer="running", reason="", updated_ms=1000, epoch=9)
    assert reader.read(now_ms=1000).epoch == 9
    write(tmp_path, 10, trainer="catching_up", reason="", updated_ms=2000, epoch=10)
    (tmp_path / "status-0000000011.json.tmp").write_text("{")
    assert reader.read(now_ms=2000).epoch == 10


def test_a_trainer_without_heartbeat_has_failed_unless_it_shut_down_cleanly(tmp_path):
    reader = TrainerStatusReader(tmp_path)
    write(tmp_path, 1, trainer="running", reason="", updated_ms=1000, samples_per_second=5.0, clean_shutdown=False)
    assert reader.read(now_ms=6000).trainer == "running"
    failed = reader.read(now_ms=6001)
    assert failed.trainer == "failed"
    assert "no heartbeat for 5 s" in failed.reason
    assert failed.samples_per_second == 0
    write(tmp_path, 1, trainer="running", reason="", updated_ms=2000, clean_shutdown=True)
    assert reader.read(now_ms=2000).trainer == "stopped"
    assert reader.read(now_ms=99_000).trainer == "stopped"


def test_a_malformed_status_file_is_ignored(tmp_path):
    reader = TrainerStatusReader(tmp_path)
    write(tmp_path, 1, trainer="running", reason="", updated_ms=1000)
    assert reader.read(now_ms=1000).trainer == "running"
    (tmp_path / "status-0000000001.json").write_text("{")
    assert reader.read(now_ms=1000).trainer == "running"
