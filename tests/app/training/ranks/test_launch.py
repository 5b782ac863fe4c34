"""The launcher ends with the code that says how its ranks have ended. `test_processes.py` has processes."""

import argparse
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from springtide.app.cli import main
from springtide.app.commands.train import launch_ranks
from springtide.app.errors import UserError
from springtide.app.training.ranks.launch import launch, require_gpus, take_gpu
from springtide.app.training.ranks.ranks import Ranks
from tests.support.config import CLICKS, write_config


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


ON_GPU = {"source": {"bootstrap_servers": "127.0.0.1:9"}, "train": {"device": "cuda", "cuda_graphs": True}}


@pytest.mark.parametrize(
    ("before", "number", "after"),
    [(None, 1, "1"), ("4,6", 1, "6"), ("GPU-a, GPU-b", 0, "GPU-a"), ("7", 0, "7")],
)
def test_a_rank_sees_only_the_gpu_of_its_number(before: str | None, number: int, after: str) -> None:
    environment = {"LOCAL_RANK": str(number)} | ({} if before is None else {"CUDA_VISIBLE_DEVICES": before})
    take_gpu(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == after


@pytest.mark.parametrize("visible", ["", "0,1"])
def test_a_rank_without_a_gpu_ends_at_once(visible: str) -> None:
    with pytest.raises(UserError, match="has no GPU for rank 2 of this machine: start at most one rank for each GPU"):
        take_gpu({"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": visible})


def test_more_ranks_than_gpus_are_not_started() -> None:
    require_gpus(2, 2)
    with pytest.raises(UserError, match="3 ranks need a GPU each, and torch sees 2 here"):
        require_gpus(3, 2)


def test_the_launcher_says_that_gpus_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(tmp_path / "springtide.toml", CLICKS, ON_GPU)
    asked = argparse.Namespace(config=path, ranks=2, max_restarts=0, from_offset=[], from_timestamp=None)
    for num_gpus, text in [
        (1, "2 ranks need a GPU each, and torch sees 1"),
        (2, "cuda_graphs = true does not go with"),
    ]:
        monkeypatch.setattr("torch.cuda.device_count", lambda num_gpus=num_gpus: num_gpus)
        with pytest.raises(UserError, match=text):
            launch_ranks(asked)


def test_a_rank_that_finds_no_gpu_ends_before_it_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="there is no GPU for rank 1 of this machine"):
        Ranks.of_environment(30.0, "cuda")
