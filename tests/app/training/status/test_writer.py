"""The status document goes on being written while the trainer itself is held up, and says by what."""

from app.training.status import writer
from app.training.status.writer import StatusWriter
from app.version_log.trainer_status import read_status
from tests.app.training.trainer_env import wait_until


def test_what_holds_the_trainer_up_is_said_beside_it_and_goes_when_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "INTERVAL_SECONDS", 0.01)
    held: dict[str, str] = {}
    keeper = StatusWriter(tmp_path, 1, lambda: dict(held))
    keeper.update({"trainer": "running", "reason": "", "version": 7})
    held |= {"trainer": "waiting", "reason": "the spill is waited for"}
    wait_until(lambda: (read_status(tmp_path) or {}).get("reason") == "the spill is waited for", "the reason")
    assert read_status(tmp_path)["version"] == 7
    held.clear()
    wait_until(lambda: read_status(tmp_path)["trainer"] == "running", "its end")
    final = keeper.close(lambda: {**keeper.document, "trainer": "stopped"})
    assert (final["trainer"], read_status(tmp_path)["trainer"]) == ("stopped", "stopped")
