"""What is shown while an evaluation runs and when it ends."""

import threading
from io import StringIO
from pathlib import Path

import pytest

from springtide.app.tools.evaluate.report import ProgressReport, evaluate_files, next_line, number
from tests.app.tools.evaluate.test_evaluation import clicks, write_config, write_rows


class Terminal(StringIO):
    """A stream that says that somebody watches."""

    def isatty(self) -> bool:
        return True


def test_lines_follow_1_2_and_5() -> None:
    lines = [1000]
    while lines[-1] < 10**6:
        lines.append(next_line(lines[-1]))
    assert lines == [k * 10**n for n in range(3, 6) for k in (1, 2, 5)] + [10**6]


def test_small_numbers_keep_their_digits() -> None:
    assert [number(value, 3) for value in (None, 0.0, 0.5, 12.0, 0.01234)] == [
        "-",
        "0.000",
        "0.500",
        "12.000",
        "0.0123",
    ]


def test_a_terminal_has_a_bar_that_is_erased_and_no_lines(tmp_path: Path) -> None:
    file, terminal = write_rows(tmp_path / "clicks.jsonl", clicks(1500)), Terminal()
    result = evaluate_files([file], write_config(tmp_path), progress=ProgressReport(stream=terminal))
    shown = terminal.getvalue()
    assert "[" in shown
    assert "AUC" in shown
    assert "\n" not in shown
    assert shown.endswith(" \r")
    assert result.is_complete


def test_a_stopped_pass_has_the_scores_up_to_there(tmp_path: Path) -> None:
    file, stopping = write_rows(tmp_path / "clicks.jsonl", clicks(1000)), threading.Event()
    stopping.set()
    result = evaluate_files([file], write_config(tmp_path), stopping=stopping, progress=ProgressReport())
    assert 0 < result.samples == len(result.scored) < 100
    assert not result.is_complete
    assert result.lines()[0].endswith("stopped before the end")
    assert result.document()["is_complete"] is False


def test_progress_lines_are_those_of_the_samples_learned(tmp_path: Path) -> None:
    file, stream = write_rows(tmp_path / "clicks.jsonl", clicks(600)), StringIO()
    result = evaluate_files([file], write_config(tmp_path), progress=ProgressReport(stream=stream, first_line=200))
    lines = stream.getvalue().splitlines()
    assert [int(line.split()[0]) // 200 for line in lines] == [1, 2]
    assert result.first.auc == pytest.approx(result.document()["scores"]["whole"]["auc"])
