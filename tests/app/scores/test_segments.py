"""Scores by the values of a feature, against the scores of the samples that have the value."""

import numpy as np
import pytest

from springtide.app.scores.auc import exact_auc
from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.samples import with_terms
from springtide.app.scores.segments import BLOCK, BYTES, SegmentHistograms
from tests.app.scores.test_drift import SCHEMA, features
from tests.app.scores.test_progressive import draw


def by_country(num: int, **settings):
    scores = ProgressiveScores(("click",), 900, ScoresConfig(by=("country",), **settings), SCHEMA)
    logits, labels, weights = draw(num)
    seen = features(num, 3)
    for part in np.array_split(np.arange(num), 7):
        where = slice(part[0], part[-1] + 1)
        scores.observe(logits[part], labels[part], weights[part], seen.slice(where.start, where.stop))
    document = scores.detailed_document(lambda feature, row_id: f"{feature} {row_id}")
    return document["segments"]["country"], seen.categorical_NC[:, 0], logits, labels, weights


def test_each_value_has_the_scores_of_its_samples():
    found, country, logits, labels, weights = by_country(6000)
    assert [each["value"] for each in found] == ["country 0", "country 1", "country 2"]
    for number, each in enumerate(found):
        for part, chosen in (("whole", country == number), ("window", (country == number) & (np.arange(6000) >= 5100))):
            z, y, w = (array[chosen].reshape(-1).astype(np.float64) for array in (logits, labels, weights))
            p, scores = 1 / (1 + np.exp(-z)), each[part]
            assert scores["auc"] == pytest.approx(exact_auc(z, w * y, w * (1 - y)), abs=5e-4)
            assert scores["label_rate"] == pytest.approx((w * y).sum() / w.sum())
            assert scores["calibration"] == pytest.approx((w * p).sum() / (w * y).sum(), rel=1e-3)
            assert scores["samples"] == pytest.approx(w.sum())


def test_values_beyond_the_limit_are_others():
    histograms = SegmentHistograms(1, 2)
    logits, labels, weights = draw(300)
    samples = with_terms({"logits": logits, "labels": labels, "weights": weights})
    histograms.add(np.arange(300) % 5, samples)
    assert histograms.ids_S.tolist() == [0, 1]
    rest = histograms.groups_of_rest(np.array([0, 1]), 0)
    assert (rest.positive_G + rest.negative_G).sum() == pytest.approx(weights[np.arange(300) % 5 > 1].sum())


def test_a_value_that_becomes_frequent_replaces_one_that_is_no_longer():
    histograms = SegmentHistograms(1, 2)
    logits, labels, weights = draw(BLOCK)
    samples = with_terms({"logits": logits, "labels": labels, "weights": weights})
    histograms.add(np.arange(BLOCK) % 2, samples)
    for _ in range(40):
        histograms.add(np.where(np.arange(BLOCK) % 4 == 0, 0, 9), samples)
    assert sorted(histograms.ids_S.tolist()) == [0, 9]
    total = histograms.groups_of_rest(np.zeros(0, np.intp), 0)
    assert (total.positive_G + total.negative_G).sum() == pytest.approx(41 * weights.sum(), rel=1e-6)


def test_the_setting_limits_memory():
    config = ScoresConfig(by=("country", "user"), segment_bytes=10 * BYTES)
    scores = ProgressiveScores(("click",), 100, config, SCHEMA)
    scores.observe(*draw(1000), features(1000, 1))
    assert len(scores.state()["segments.user.ids"]) == 5
    document = scores.detailed_document(lambda feature, row_id: str(row_id))
    assert [each["value"] for each in document["segments"]["user"]][-1] is None
    with pytest.raises(ValueError, match="country, user"):
        ScoresConfig(by=("age",)).check_by(SCHEMA)


def test_labels_that_are_masked_do_not_count():
    scores = ProgressiveScores(("click", "buy"), 100, ScoresConfig(by=("country",)), SCHEMA)
    logits, labels, weights = draw(500, labels=2)
    labels[:, 1] = np.nan
    scores.observe(logits, labels, weights, features(500, 1))
    tasks = scores.detailed_document(lambda feature, row_id: str(row_id))["tasks"]
    assert {each["whole"]["samples"] for each in tasks["buy"]["segments"]["country"]} == {0.0}
    assert tasks["click"]["segments"]["country"][0]["whole"]["samples"] > 0
