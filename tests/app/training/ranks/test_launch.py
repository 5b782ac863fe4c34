"""The launcher ends with the code that says how its ranks have ended. `test_processes.py` has processes."""

import signal
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from springtide.app.cli import main
from springtide.app.training.ranks.launch import launch


@pytest.fixture
def ended(monkeypatch):
    """Return what the launcher ends with if its ranks have ended with these codes, perhaps after a signal."""
    monkeypatch.setenv("SPRINGTIDE_PARENT", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(failed: dict[int, int | None], stopped_by: signal.Signals | None = None) -> int:
        def run_agent() -> None:
            if stopped_by is not None:
                raise SignalException("got a signal", stopped_by)

        agent = SimpleNamespace(run=run_agent, failed=lambda: failed, leave=lambda: None, first_failed=1)
        monkeypatch.setattr("springtide.app.training.ranks.launch._agent", lambda *_, **__: agent)
        return launch([], num_ranks=2, max_restarts=3)

    return run


def test_a_stop_is_a_success_only_if_every_rank_has_ended_well(ended, capsys):
    assert ended({}, signal.SIGTERM) == 0
    assert ended({1: -9}, signal.SIGTERM) == 1
    assert "stopped by SIGTERM, but not every rank could publish and end: rank 1 ended with exit code -9" in (
        capsys.readouterr().err
    )
    assert ended({0: None}, signal.SIGINT) == 1
    assert "rank 0 still runs" in capsys.readouterr().err


def test_the_exit_code_says_whose_error_it_was(ended, capsys):
    assert ended({}) == 0
    assert ended({0: 2, 1: -15}) == 2
    assert ended({0: 3, 1: 3}) == 1
    assert capsys.readouterr().err == ""  # the rank has said why
    assert ended({0: 1, 1: -9}) == 1
    assert "rank 1 ended with exit code -9, and --max-restarts 3 allows no further start" in capsys.readouterr().err


def test_restarts_of_one_process_are_refused(tmp_path, capsys):
    path = tmp_path / "springtide.toml"
    path.write_text("")
    assert main(["train", "--max-restarts", "3", "--config", str(path)]) == 2
    assert main(["train", "--ranks", "1", "--max-restarts", "3", "--config", str(path)]) == 2
    assert capsys.readouterr().err.count("--max-restarts is for --ranks of 2 or more") == 2
