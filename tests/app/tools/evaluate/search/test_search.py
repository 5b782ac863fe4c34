"""A search finds better settings, says how sure it is, and does the same again."""

import tomllib
from pathlib import Path

import pytest

from springtide.app.config.assignments import parse_assignment
from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.passes import evaluate_files
from springtide.app.tools.evaluate.search.plan import Budget
from springtide.app.tools.evaluate.search.search import Search, SearchResult
from springtide.app.tools.evaluate.search.space import candidates, describe_change
from springtide.app.tools.evaluate.search.winner import search_document, search_lines, winner_toml
from springtide.app.tools.input_file import InputFile
from tests.app.tools.evaluate.test_evaluation import clicks, write_config, write_rows

WORST = "table.optimizer.lr=0.00001"


def searched(folder: Path, path: Path, file: InputFile, *, jobs: int = 1, runs: int = 6) -> SearchResult:
    """Search from settings that learn next to nothing."""
    assignments = [parse_assignment(WORST), parse_assignment("train.optimizer.lr=0.0003")]
    return Search([file], path, assignments, budget=Budget(runs, None), seed=3, jobs=jobs).run()


def test_a_search_beats_bad_settings_and_its_winner_is_a_configuration(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2600))
    found = searched(tmp_path, path, file)
    assert found.change
    assert [len(rung.trials) for rung in found.rungs] == [6, 2]
    assert [rung.rows for rung in found.rungs] == [1000, 2080]
    assert found.rungs[1].trials[0][0] == found.change
    losses = [trial.loss for _, trial in found.rungs[0].trials]
    assert losses == sorted(losses)
    assert {describe_change(change) for change, _ in found.rungs[1].trials} <= {
        describe_change(change) for change, _ in found.rungs[0].trials[:2]
    }
    assert found.winner.first.logloss < found.given.first.logloss
    assert found.whole.logloss == pytest.approx(found.winner.first.logloss - found.given.first.logloss)
    assert found.unseen.samples == sum(row["click"] != "often" for row in clicks(2600)[2080:])
    assert any("chose nothing" in line for line in search_lines(found))
    assert search_document(found)["rungs"][0]["rows"] == 1000

    written = tmp_path / "best.toml"
    assignments = [parse_assignment(WORST), parse_assignment("train.optimizer.lr=0.0003")]
    written.write_text(winner_toml(found, path, assignments))
    again = evaluate_files([file], written)
    assert again.whole == found.winner.whole
    assert tomllib.loads(written.read_text())["log"] == tomllib.loads(path.read_text())["log"]
    assert load_config(written).schema == load_config(path).schema


def test_processes_find_the_same(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(2100))
    one, two = (searched(tmp_path, path, file, jobs=jobs, runs=3) for jobs in (1, 2))
    assert (one.change, one.whole, one.unseen) == (two.change, two.whole, two.unseen)
    losses = [[[trial.loss for _, trial in rung.trials] for rung in found.rungs] for found in (one, two)]
    assert losses[0] == losses[1]


def test_candidates_differ_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path))
    first = candidates(config, 20, seed=1)
    assert first[0] == {}
    assert len({describe_change(change) for change in first}) == 20
    assert first == candidates(config, 20, seed=1) != candidates(config, 20, seed=2)
    assert candidates(config, 9, seed=1) == first[:9]
    everything = candidates(config, 10_000, seed=1)
    assert len({describe_change(change) for change in everything}) == len(everything) < 10_000


def test_a_log_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path, file = write_config(tmp_path), write_rows(tmp_path / "clicks.jsonl", clicks(100))
    with pytest.raises(UserError, match="at least 2,000 rows, not 100"):
        Search([file], path)
