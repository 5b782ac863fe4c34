"""Standard errors of AUCs: against the definition by pairs, and against many draws."""

import numpy as np
import pytest

from springtide.app.scores.auc import exact_auc
from springtide.app.tools.evaluate.scores import difference_error, placements, standard_error


def draw(seed: int, num: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two models' scores, rounded so that there are ties, and the labels."""
    rng = np.random.default_rng(seed)
    truth_N, noise_N = rng.normal(size=num), rng.normal(size=num)
    labels_N = (rng.random(num) < 1 / (1 + np.exp(-truth_N))).astype(float)
    return np.round(truth_N + noise_N, 1), np.round(truth_N + 0.5 * noise_N + rng.normal(size=num), 1), labels_N


def test_placements_are_those_of_the_pairs() -> None:
    scores_N, _, labels_N = draw(0)
    below_N, above_N = placements(scores_N, labels_N, 1 - labels_N)
    negatives, positives = scores_N[labels_N == 0], scores_N[labels_N == 1]
    for score, below, above in zip(scores_N, below_N, above_N, strict=True):
        assert below == pytest.approx(np.mean((negatives < score) + 0.5 * (negatives == score)))
        assert above == pytest.approx(np.mean((positives > score) + 0.5 * (positives == score)))
    auc = exact_auc(scores_N, labels_N, 1 - labels_N)
    assert auc == pytest.approx(below_N[labels_N == 1].mean())
    assert auc == pytest.approx(above_N[labels_N == 0].mean())


def test_errors_are_the_spread_of_many_draws() -> None:
    drawn = [draw(seed) for seed in range(1, 500)]
    aucs = np.array([[exact_auc(scores, y, 1 - y) for scores in (first, second)] for first, second, y in drawn])
    errors = np.array([[standard_error(a, y, 1 - y), difference_error(a, b, y, 1 - y)] for a, b, y in drawn])
    assert errors[:, 0].mean() == pytest.approx(aucs[:, 0].std(), rel=0.1)
    assert errors[:, 1].mean() == pytest.approx((aucs[:, 0] - aucs[:, 1]).std(), rel=0.1)


def test_a_model_does_not_differ_from_itself() -> None:
    scores_N, _, labels_N = draw(0)
    assert difference_error(scores_N, 2 * scores_N + 1, labels_N, 1 - labels_N) == 0


def test_one_class_or_one_sample_of_it_has_no_error() -> None:
    scores_N, ones_N = np.arange(4.0), np.ones(4)
    assert standard_error(scores_N, ones_N, 0 * ones_N) is None
    assert standard_error(scores_N, np.eye(4)[0], ones_N - np.eye(4)[0]) is None
