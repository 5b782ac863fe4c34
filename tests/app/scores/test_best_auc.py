"""The best reachable AUC of simulated clicks."""

from pathlib import Path

import numpy as np
import pytest

from springtide.app.scores.auc import click_auc
from springtide.app.scores.best_auc import BestAucWindow, read_best_auc, write_best_auc


def test_the_auc_counts_ties_half_and_is_none_with_one_class() -> None:
    labels = np.array([False, True, False, True])
    assert click_auc(np.array([0.1, 0.9, 0.2, 0.8]), labels) == 1.0
    assert click_auc(np.full(4, 0.5), labels) == 0.5
    assert click_auc(np.array([0.1, 0.1, 0.2, 0.8]), labels) == pytest.approx(0.625)
    assert click_auc(np.ones(2), np.ones(2, dtype=bool)) is None


def test_the_best_auc_covers_the_recent_window_only() -> None:
    best = BestAucWindow(window=4)
    assert best.value() is None
    best.observe(np.array([0.9, 0.8, 0.2, 0.1]), np.array([False, False, True, True]))
    assert best.value() == 0.0
    best.observe(np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, False, True, False]))
    assert best.value() == 1.0


def test_the_file_is_read_as_written_and_missing_or_malformed_ones_are_none(tmp_path: Path) -> None:
    assert read_best_auc(tmp_path) is None
    write_best_auc(tmp_path / "log", 0.8125)
    assert read_best_auc(tmp_path / "log") == 0.8125
    write_best_auc(tmp_path / "log", None)
    assert read_best_auc(tmp_path / "log") is None
    (tmp_path / "log" / "simulator.json").write_text("{")
    assert read_best_auc(tmp_path / "log") is None
