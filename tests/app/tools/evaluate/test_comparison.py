"""Differences of two evaluations, on the rows that both have learned."""

import numpy as np
import pytest

from springtide.app.tools.evaluate.comparison import compare
from springtide.app.tools.evaluate.scores import EvaluatedSamples, score_of


def samples(seed: int, noise: float, num: int = 400) -> EvaluatedSamples:
    """Scores of the same clicks, with more or less noise."""
    rng, own = np.random.default_rng(7), np.random.default_rng(seed)
    truth_N = rng.normal(size=num)
    labels_N = (rng.random(num) < 1 / (1 + np.exp(-truth_N))).astype(np.float32)
    logits_N = (truth_N + noise * own.normal(size=num)).astype(np.float32)
    return EvaluatedSamples(logits_N[:, None], labels_N[:, None], np.ones(num, np.float32), np.arange(num))


def test_a_difference_is_that_of_the_scores() -> None:
    first, second = samples(1, 2.0), samples(2, 0.1)
    found = compare(first, second)
    before, after = score_of(first), score_of(second)
    assert found.samples == 400
    assert found.auc == pytest.approx(after.auc - before.auc)
    assert found.logloss == pytest.approx(after.logloss - before.logloss)
    assert found.is_better
    assert not compare(second, first).is_better
    assert compare(second, first).auc_standard_error == pytest.approx(found.auc_standard_error)


def test_a_difference_to_itself_is_nothing() -> None:
    found = compare(samples(1, 1.0), samples(1, 1.0))
    assert (found.auc, found.auc_standard_error, found.logloss, found.logloss_standard_error) == (0, 0, 0, 0)
    assert not found.is_better


def test_only_rows_that_both_have_learned_count_from_the_named_row_on() -> None:
    first, second = samples(1, 2.0), samples(2, 0.1)
    some = second.where(np.arange(400) % 4 != 0)
    found = compare(first, some, from_row=200)
    kept = np.array([n for n in range(200, 400) if n % 4])
    assert found == compare(first.where(kept), second.where(kept))
    assert found.samples == 150


def test_errors_of_a_difference_are_its_spread_over_many_draws() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        truth_N = rng.normal(size=300)
        labels_N = (rng.random(300) < 1 / (1 + np.exp(-truth_N))).astype(np.float32)[:, None]
        ones_N, rows_N = np.ones(300, np.float32), np.arange(300)
        logits_NM = (truth_N[:, None] + rng.normal(size=(300, 2))).astype(np.float32)
        found.append(compare(*(EvaluatedSamples(logits_NM[:, m : m + 1], labels_N, ones_N, rows_N) for m in range(2))))
    for name in ("auc", "logloss"):
        values = [getattr(each, name) for each in found]
        errors = [getattr(each, f"{name}_standard_error") for each in found]
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)
