"""Scores of what was served equal the exact ones, whatever the batches, and survive a version."""

import msgspec
import numpy as np
import pytest

from springtide.app.scores.served import ServedScores


def test_auc_logloss_and_calibration_are_those_of_all_impressions() -> None:
    random = np.random.default_rng(1)
    scores = 1 / (1 + np.exp(-random.normal(-2, 1.5, 4000)))
    labels = (random.random(4000) < scores).astype(np.float32)
    found, other = ServedScores(), ServedScores()  # by two ranks
    for part in np.array_split(np.arange(4000), 7):
        found = found.observe(scores[part], labels[part], np.ones(len(part)))
        found, other = other, msgspec.json.decode(msgspec.json.encode(found), type=ServedScores)
    found = found.plus(ServedScores()).plus(other)
    positive, negative = scores[labels > 0], scores[labels == 0]
    document = found.document()
    assert found.num == 4000
    assert document["auc"] == pytest.approx((positive[:, None] > negative[None, :]).mean(), abs=1e-3)
    losses = -np.where(labels > 0, np.log(scores), np.log1p(-scores))
    assert document["logloss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert document["calibration"] == pytest.approx(scores.sum() / labels.sum(), rel=1e-6)


def test_missing_scores_and_masked_labels_count_nothing() -> None:
    nothing = ServedScores().observe(np.array([np.nan, 0.5]), np.array([1.0, np.nan]), np.ones(2))
    assert nothing == ServedScores()
    assert nothing.document() == {"auc": None, "logloss": None, "calibration": None}
    certain = nothing.observe(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.ones(2)).document()
    assert certain["auc"] == 1
    assert certain["logloss"] == pytest.approx(0, abs=1e-5)
