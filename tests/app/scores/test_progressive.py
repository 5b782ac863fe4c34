import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.app.scores.auc import exact_auc
from springtide.app.scores.progressive import ProgressiveScores


def draw(num: int, *, labels: int = 1, seed: int = 0, spread: float = 1.0, base: float = -1.0):
    random = np.random.default_rng(seed)
    logits = random.normal(base, spread, (num, labels)).astype(np.float32)
    clicks = (random.random((num, labels)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, clicks, random.exponential(1, num).astype(np.float32)


def slow_auc(logits, labels, weights) -> float:
    """Every pair, as the definition says."""
    above = (logits[:, None] > logits[None, :]) + 0.5 * (logits[:, None] == logits[None, :])
    pairs = (weights * labels)[:, None] * (weights * (1 - labels))[None, :]
    return float((above * pairs).sum() / pairs.sum())


def test_whole_scores_equal_their_definition():
    logits, labels, weights = draw(800)
    scores = ProgressiveScores(["click"], 300)
    scores.observe(logits, labels, weights)
    whole = scores.document()["whole"]
    z, y, w = (array.reshape(-1).astype(np.float64) for array in (logits, labels, weights))
    p = 1 / (1 + np.exp(-z))
    assert whole["auc"] == pytest.approx(slow_auc(z, y, w), abs=1e-4)
    assert whole["logloss"] == pytest.approx(-(w * (y * np.log(p) + (1 - y) * np.log(1 - p))).sum() / w.sum())
    assert whole["calibration"] == pytest.approx((w * p).sum() / (w * y).sum())


@pytest.mark.parametrize(("spread", "base"), [(0.02, -6.0), (0.3, -6.0), (1.0, 0.0), (6.0, 3.0)])
def test_the_auc_of_a_long_run_is_within_1e_4(spread, base):
    logits, labels, weights = draw(200_000, spread=spread, base=base)
    scores = ProgressiveScores(["click"], 10)
    scores.observe(logits, labels, weights)
    z, y, w = (array.reshape(-1).astype(np.float64) for array in (logits, labels, weights))
    assert scores.document()["whole"]["auc"] == pytest.approx(exact_auc(z, w * y, w * (1 - y)), abs=1e-4)


def test_the_window_is_exact_over_the_last_samples():
    logits, labels, weights = draw(5000)
    scores = ProgressiveScores(["click"], 700)
    for part in np.array_split(np.arange(5000), 37):
        scores.observe(logits[part], labels[part], weights[part])
    z, y, w = (array[-700:].reshape(-1).astype(np.float64) for array in (logits, labels, weights))
    assert scores.document()["window"]["auc"] == pytest.approx(slow_auc(z, y, w), abs=1e-12)


@given(splits=st.lists(st.integers(0, 400), max_size=6), versions=st.lists(st.integers(0, 6), max_size=3))
def test_state_and_deltas_equal_observing_bit_by_bit(splits, versions):
    logits, labels, weights = draw(400, labels=2)
    labels[::7, 1] = np.nan
    straight = ProgressiveScores(["click", "order"], 90)
    straight.observe(logits, labels, weights)

    written, bounds = ProgressiveScores(["click", "order"], 90), sorted({0, *splits, 400})
    base, deltas = written.state(), []
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        written.observe(logits[start:stop], labels[start:stop], weights[start:stop])
        if number in versions:
            deltas.append(written.delta())
        if number == 2:
            deltas.append(written.delta())
            base, deltas = written.state(), []
    deltas.append(written.delta())
    read = ProgressiveScores(["click", "order"], 90)
    read.restore(base)
    for delta in deltas:
        read.apply(delta)

    assert read.document() == written.document() == straight.document()
    for name, array in straight.state().items():
        np.testing.assert_array_equal(read.state()[name], array)
    assert sorted(read.state_sizes()) == sorted(array.nbytes for array in read.state().values())


def test_one_class_has_no_auc_and_no_samples_have_no_scores():
    scores = ProgressiveScores(["click"], 10)
    assert set(scores.document()["whole"].values()) == {None}
    scores.observe(np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32), np.ones(3, np.float32))
    whole = scores.document()["whole"]
    assert (whole["auc"], whole["logloss"], whole["calibration"]) == (None, pytest.approx(np.log(2)), None)


def test_several_labels_are_tasks_and_the_first_is_the_headline():
    logits, labels, weights = draw(100, labels=2)
    labels[:, 1] = np.nan
    scores = ProgressiveScores(["click", "order"], 10)
    scores.observe(logits, labels, weights)
    document = scores.document()
    assert document["whole"] == document["tasks"]["click"]["whole"]
    assert document["tasks"]["order"]["whole"]["logloss"] is None


def test_nan_logits_are_scored_and_do_not_spread():
    scores = ProgressiveScores(["click"], 10)
    bad = np.array([[np.nan], [np.inf], [-np.inf]], np.float32)
    scores.observe(bad, np.array([[1], [1], [0]], np.float32), np.ones(3, np.float32))
    assert np.isfinite(scores.document()["whole"]["logloss"])


def test_a_label_that_is_a_value_has_an_error_and_a_mean_and_no_auc():
    links, draw = ("logit", "log1p"), np.random.default_rng(0)
    scores, read = (ProgressiveScores(["click", "seconds"], 60, links=links) for _ in range(2))
    seconds = draw.exponential(200, 100).astype(np.float32)
    logits = np.stack([draw.normal(size=100), np.log1p(seconds) + 0.1], axis=1).astype(np.float32)
    labels = np.stack([(draw.random(100) < 0.5), seconds], axis=1).astype(np.float32)
    labels[3, 1] = np.nan
    scores.observe(logits, labels, np.ones(100, np.float32))
    whole = scores.document()["tasks"]["seconds"]["whole"]
    known = np.delete(seconds, 3).astype(np.float64)
    assert whole["auc"] is whole["logloss"] is None
    assert whole["rmse"] == pytest.approx(0.1, rel=1e-4)
    assert whole["label_rate"] == pytest.approx(known.mean())
    assert whole["calibration"] == pytest.approx(((known + 1) * np.exp(0.1) - 1).sum() / known.sum(), rel=1e-5)
    alone = ProgressiveScores(["click"], 60)
    alone.observe(logits[:, :1], labels[:, :1], np.ones(100, np.float32))
    assert scores.document()["tasks"]["click"] == alone.document()
    read.restore(scores.state())
    assert read.document() == scores.document()
