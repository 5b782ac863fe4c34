"""A search finds better settings, says how sure it is, and does the same again."""

import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from springtide.app.config.document import parse_assignment
from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.report import evaluate_files
from springtide.app.tools.evaluate.search import Budget, Search, SearchResult, describe, present_settings
from springtide.stream.history.input_file import InputFile
from tests.app.tools.evaluate.test_evaluation import clicks, write_config, write_rows

SLOW = ("model.wide=false", "table.optimizer.lr=0.005", "train.optimizer.lr=0.0002", "train.batch_size=1024")
WORST = [parse_assignment(text) for text in SLOW]


def searched(path: Path, file: InputFile, *, storage: str | None = None) -> SearchResult:
    """Search from settings that learn next to nothing."""
    pytest.importorskip("optuna", reason="Optuna is not installed: evaluate --search is not tested")
    return Search([file], path, WORST, budget=Budget(runs=4), seed=3, storage=storage).run()


def test_a_search_beats_bad_settings_and_its_winner_is_a_configuration(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2600))
    found = searched(path, file)
    assert found.settings
    assert found.trials[0]["settings"].items() >= found.settings.items()
    assert any(trial["settings"]["table.optimizer.lr"] == 0.005 for trial in found.trials)  # as it is
    assert found.winner.first.logloss < found.given.first.logloss
    assert found.whole.logloss == pytest.approx(found.winner.first.logloss - found.given.first.logloss)
    assert found.unseen.samples == sum(row["click"] != "often" for row in clicks(2600)[2080:])
    assert f"winner: {describe(found.settings)}" in found.lines()
    assert any("chose nothing" in line for line in found.lines())
    assert len(found.document()["trials"]) == 4

    written = tmp_path / "best.toml"
    written.write_text(found.toml(path, WORST))
    again = evaluate_files([file], written)
    assert again.whole == found.winner.whole
    assert tomllib.loads(written.read_text())["log"] == tomllib.loads(path.read_text())["log"]
    assert load_config(written).schema == load_config(path).schema


def test_a_search_does_the_same_again_and_one_with_a_storage_goes_on(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2100))
    storage = f"sqlite:///{tmp_path}/search.db"
    one, two = searched(path, file), searched(path, file, storage=storage)
    assert (one.settings, one.whole, one.unseen, one.trials) == (two.settings, two.whole, two.unseen, two.trials)
    assert len(searched(path, file, storage=storage).trials) == 8


def test_a_storage_goes_on_only_with_the_same_search(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2100))
    storage = f"sqlite:///{tmp_path}/search.db"
    searched(path, file, storage=storage)
    other = write_rows(tmp_path / "others.jsonl", clicks(2200))
    assert len(searched(path, other, storage=storage).trials) == 4
    with pytest.raises(UserError, match=r"--storage sqlite:////nowhere/s\.db cannot be used"):
        searched(path, file, storage="sqlite:////nowhere/s.db")


def test_a_search_that_is_stopped_gives_no_result(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed: evaluate --search is not tested")
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2100))
    stopping = threading.Event()
    search = Search([file], path, WORST, budget=Budget(runs=4), seed=3, stopping=stopping)
    after_trial = search._after_trial

    def stop(study: Any, trial: Any) -> None:
        stopping.set()
        after_trial(study, trial)

    search._after_trial = stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        search.run()


def test_settings_that_fall_behind_are_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("springtide.app.tools.evaluate.search.MIN_PRUNED_ROWS", 100)
    found = searched(write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2100)))
    assert {trial["state"] for trial in found.trials} == {"complete", "pruned"}


def test_the_present_settings_are_those_of_the_configuration(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), assignments=WORST)
    found = present_settings(config)
    assert found["table.optimizer.lr"] == 0.005
    assert found["train.batch_size"] == config.train.batch_size


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("27 runs", Budget(27)),
        ("9", Budget(9)),
        ("90s", Budget(None, 90.0)),
        ("10m", Budget(None, 600.0)),
        ("1.5 h", Budget(None, 5400.0)),
    ],
)
def test_a_budget_is_a_number_of_runs_or_a_time(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "1", "-3", "0m", "10 days", "ten", "3.5 runs"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="number of runs"):
        Budget.parse(text)


def test_a_log_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(100))
    with pytest.raises(UserError, match="at least 2,000 rows, not 100"):
        Search([file], path)


def test_without_optuna_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2000))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'springtide\[search\]'"):
        Search([file], path)
