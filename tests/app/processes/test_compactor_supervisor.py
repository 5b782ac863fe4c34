"""The compactor as a child: a configuration that it refuses is tried again, for it can be corrected meanwhile."""

import logging
from pathlib import Path

import pytest

from springtide.app.processes import compactor_supervisor
from springtide.app.processes.compactor_supervisor import CompactorSupervisor
from tests.support.waiting import wait_until


def test_a_refused_configuration_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compactor_supervisor, "REFUSED_PAUSE_SECONDS", 0.01)
    config = tmp_path / "springtide.toml"
    config.write_text("not valid TOML")

    def num_refusals() -> int:
        return sum("does not start" in record.getMessage() for record in caplog.records)

    with caplog.at_level(logging.WARNING), CompactorSupervisor(config, tmp_path / "log"):
        wait_until(lambda: num_refusals() >= 2, "a second start")
