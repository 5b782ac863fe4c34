"""Calibration curve, its error, lift and normalized entropy against plain loops."""

import numpy as np
import pytest

from springtide.app.scores.auc import RocHistogram, exact_groups
from springtide.app.scores.document import (
    calibration_curve,
    calibration_error,
    normalized_entropy,
    top_decile_lift,
)
from springtide.app.scores.progressive import ProgressiveScores
from tests.app.scores.test_progressive import draw


def samples(num: int = 4000, *, seed: int = 0):
    logits, labels, weights = (array.reshape(-1).astype(np.float64) for array in draw(num, seed=seed))
    return logits, labels, weights, 1 / (1 + np.exp(-logits))


def slow_curve(scores, predicted, labels, weights, num_bins=20):
    """Sort; put each sample into the twentieth of the weight in which its middle is."""
    bins = [[0.0, 0.0, 0.0] for _ in range(num_bins)]
    until, total = 0.0, weights.sum()
    for n in sorted(range(len(scores)), key=lambda n: scores[n]):
        each = bins[int(num_bins * (until + weights[n] / 2) / total)]
        until += weights[n]
        for place, value in enumerate((weights[n] * predicted[n], weights[n] * labels[n], weights[n])):
            each[place] += value
    return [(predicted / weight, seen / weight, weight) for predicted, seen, weight in bins]


def test_the_curve_of_the_window_equals_its_definition():
    z, y, w, p = samples()
    curve = calibration_curve(exact_groups(z, p, w * y, w * (1 - y)))
    np.testing.assert_allclose(curve, slow_curve(z, p, y, w), rtol=1e-9)
    error = sum(weight * abs(predicted - seen) for predicted, seen, weight in slow_curve(z, p, y, w)) / w.sum()
    assert calibration_error(curve) == pytest.approx(error)


def test_the_curve_of_a_long_run_is_close_to_exact():
    z, y, w, p = samples(100_000)
    histogram = RocHistogram()
    histogram.add(z, w * y, w * (1 - y))
    exact = exact_groups(z, p, w * y, w * (1 - y))
    np.testing.assert_allclose(calibration_curve(histogram.groups()), calibration_curve(exact), rtol=2e-3)
    assert top_decile_lift(histogram.groups()) == pytest.approx(top_decile_lift(exact), rel=1e-4)


def test_equal_scores_share_one_bin():
    ones = np.ones(1000)
    (only,) = calibration_curve(exact_groups(ones, 0.25 * ones, 0.3 * ones, 0.7 * ones))
    assert only == pytest.approx((0.25, 0.3, 1000))
    assert top_decile_lift(exact_groups(ones, 0.25 * ones, 0.3 * ones, 0.7 * ones)) == pytest.approx(1)


def test_the_lift_of_the_top_decile_is_its_label_rate_over_that_of_all():
    z, y, _, p = samples(5000)
    best = np.argsort(-z)[:500]
    groups = exact_groups(z, p, y, 1 - y)
    assert top_decile_lift(groups) == pytest.approx(y[best].mean() / y.mean())


def test_normalized_entropy_is_1_for_the_label_rate_itself_and_0_for_an_oracle():
    rate = 0.03
    always = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert normalized_entropy(always, rate) == pytest.approx(1)
    assert normalized_entropy(0.0, rate) == 0
    assert normalized_entropy(0.5, 0.0) is normalized_entropy(0.5, 1.0) is None


def test_the_document_has_them_for_whole_and_window():
    logits, labels, weights = draw(3000)
    scores = ProgressiveScores(["click"], 700)
    scores.observe(logits, labels, weights)
    document = scores.detailed_document(lambda feature, row_id: "")
    y, w = (array.reshape(-1).astype(np.float64) for array in (labels, weights))
    for part, chosen in (("whole", slice(None)), ("window", slice(-700, None))):
        found, rate = document[part], (w * y)[chosen].sum() / w[chosen].sum()
        assert found["label_rate"] == pytest.approx(rate)
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        assert found["normalized_entropy"] == pytest.approx(found["logloss"] / entropy)
        assert found["information_gain"] == pytest.approx(1 - found["normalized_entropy"])
        assert len(found["curve"]) == 20
        assert sum(each["weight"] for each in found["curve"]) == pytest.approx(w[chosen].sum())


def test_without_samples_there_is_no_curve():
    none = np.zeros(0)
    assert calibration_curve(exact_groups(none, none, none, none)) == []
    assert calibration_error([]) is top_decile_lift(exact_groups(none, none, none, none)) is None
    assert calibration_curve(RocHistogram().groups()) == []
