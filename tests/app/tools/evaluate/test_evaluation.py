"""A pass over a file learns bit by bit what a trainer learns from a topic with the same messages."""

import json
import math
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.comparison import comparison_lines
from springtide.app.tools.evaluate.report import STATUS_SCORES, evaluate_files
from springtide.app.tools.replay import Replay, ReplayConfig
from springtide.app.training.trainer import Trainer
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.history.input_file import InputFile
from springtide_client.log.directory import LogDirectory
from tests.support.config import Section, config_in

SETTINGS = """
name = "test"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
dense = ["age"]
[train]
batch_size = 64
max_wait_seconds = inf
threads = 1
[log]
publish_seconds = 0.05
"""


def write_config(folder: Path, *changes: Section) -> Path:
    return config_in(folder, SETTINGS, *changes).path


def clicks(num: int, *, users: int = 40) -> list[dict[str, Any]]:
    """Clicks that depend on user and item; some fields are missing, some rows cannot be learned."""
    draw = random.Random(3)
    rows = []
    for number in range(num):
        user, item = draw.randrange(users), draw.randrange(12)
        logit = math.sin(user) + math.cos(3 * item)
        rows.append(
            {
                "user_id": user,
                "item_id": f"item {item}" if item else None,
                "genres": [f"g{item % 3}", f"g{user % 2}"][: draw.randrange(3)],
                "age": draw.choice([None, 20 + user]),
                "ts": 1_700_000_000_000 + 1000 * number,
                "country": draw.choice(["DE", "DE", "日本"]),
                "click": "often" if number % 97 == 5 else int(draw.random() < 1 / (1 + math.exp(-logit))),
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> InputFile:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return InputFile(path)


def train_through_kafka(path: Path, file: InputFile) -> dict[str, Any]:
    """Return the scores of a trainer that has learned the file from a topic."""
    config = load_config(path)
    with EmbeddedBroker(config.log.path):
        Replay(ReplayConfig(path=file.path), config.source, log_path=config.log.path).run(threading.Event())
        status = Trainer(config, until_end=True).run().to_json()
    newest = list(LogDirectory(config.log.path).records(None))[-1].meta
    assert newest.samples_trained == status["samples_trained"]
    return {"scores": newest.scores, "samples": newest.samples_trained, "dead_letters": newest.dead_letters}


@pytest.mark.parametrize(("device_bytes", "wide"), [("8MiB", False), ("128KiB", True)])
def test_scores_equal_those_of_a_trainer_fed_through_kafka(tmp_path: Path, device_bytes: str, wide: bool) -> None:
    """With the small table rows are evicted, spilled and fetched."""
    path = write_config(tmp_path, {"table": {"device_bytes": device_bytes}, "model": {"wide": wide}})
    file = write_rows(tmp_path / "clicks.jsonl", clicks(3000, users=1500))
    trained = train_through_kafka(path, file)
    result = evaluate_files([file], path)
    whole = result.document()["scores"]["whole"]
    assert {name: whole[name] for name in trained["scores"]["whole"] if name in whole} == {
        name: value for name, value in trained["scores"]["whole"].items() if name in whole
    }
    assert set(STATUS_SCORES) <= trained["scores"]["whole"].keys()
    assert (result.samples, result.dead_letters) == (trained["samples"], trained["dead_letters"])
    assert result.dead_letters["wrong_type"] == 31
    assert result.first_dead_letter.startswith("row 6: wrong_type: click")
    assert not list(tmp_path.glob("springtide-evaluate-*"))


def test_scores_are_near_those_of_a_trainer_whose_batches_do_not_wait(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"train": {"max_wait_seconds": 0.2}})
    file = write_rows(tmp_path / "clicks.jsonl", clicks(3000))
    trained = train_through_kafka(path, file)["scores"]["whole"]
    result = evaluate_files([file], path)
    assert result.first.auc == pytest.approx(trained["auc"], abs=1e-3)
    assert result.first.logloss == pytest.approx(trained["logloss"], abs=1e-3)


def test_a_pass_is_the_same_however_it_is_read(tmp_path: Path) -> None:
    rows, path = clicks(1000), write_config(tmp_path)
    whole = evaluate_files([write_rows(tmp_path / "all.jsonl", rows)], path)
    parts = [write_rows(tmp_path / "a.jsonl", rows[:301]), write_rows(tmp_path / "b.jsonl", rows[301:])]
    again = evaluate_files(parts, path)
    limited = evaluate_files([write_rows(tmp_path / "more.jsonl", rows + rows)], path, limit=1000)
    assert whole.whole == again.whole == limited.whole
    assert whole.rows == again.rows == limited.rows == 1000


def test_segments_are_scored_with_the_most_frequent_first(tmp_path: Path) -> None:
    rows = clicks(1000)
    result = evaluate_files([write_rows(tmp_path / "clicks.jsonl", rows)], write_config(tmp_path), by="country")
    (first, germany), (second, japan) = result.segments
    assert (first, second) == ("DE", "日本")
    learned = [row for row in rows if row["click"] != "often"]
    assert germany.samples == sum(row["country"] == "DE" for row in learned)
    assert germany.samples + japan.samples == result.samples == len(learned)
    assert germany.label_rate == pytest.approx(
        sum(row["click"] for row in learned if row["country"] == "DE") / germany.samples
    )


def test_segments_by_a_field_that_no_row_has_are_a_warning(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "clicks.jsonl", clicks(100))
    warnings = {by: evaluate_files([path], write_config(tmp_path), by=by).warnings() for by in ("countri", "country")}
    line = "no row has a value for countri: --by must name a field of the rows"
    assert [by for by in warnings if line in warnings[by]] == ["countri"]


def test_rare_segments_are_scored_together(tmp_path: Path) -> None:
    result = evaluate_files([write_rows(tmp_path / "a.jsonl", clicks(500))], write_config(tmp_path), by="user_id")
    assert len(result.segments) == 21
    assert result.segments[-1][0] == "others (20)"
    assert sum(score.samples for _, score in result.segments) == result.samples


def test_a_file_without_samples_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    with pytest.raises(UserError, match="files are empty"):
        evaluate_files([write_rows(tmp_path / "empty.jsonl", [])], path)
    with pytest.raises(UserError, match=r"no row can be learned \(3 missing_label\); row 1: missing_label: no value"):
        evaluate_files([write_rows(tmp_path / "bad.jsonl", [{"user_id": 1, "ts": 0}] * 3)], path)


def test_fields_that_no_row_has_are_named(tmp_path: Path) -> None:
    path, rows = write_config(tmp_path), clicks(100)
    whole = evaluate_files([write_rows(tmp_path / "whole.jsonl", rows)], path)
    without = [row | {"genres": [], "age": None} for row in rows]
    result = evaluate_files([write_rows(tmp_path / "without.jsonl", without)], path)
    assert whole.fields_without_values == []
    assert result.document()["fields_without_values"] == ["genres", "age"]
    warning = "no row has a value for genres, age: nothing is learned from that; compare [schema] with the rows"
    assert warning in result.lines()
    assert f"2: {warning}" in comparison_lines(whole, result)
