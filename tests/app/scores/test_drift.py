"""Drift of label rate, scores and features: the index against its formula, and what raises it."""

import itertools

import numpy as np
import pytest

from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.drift import (
    WindowDrift,
    id_codes,
    next_snapshot,
    number_codes,
    psi,
    psi_level,
    sampling_stride,
)
from springtide.app.scores.progressive import ProgressiveScores
from springtide_client.features import Features, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("country", "user"), multi_value=("genres",), dense=("age",))
WINDOW = 2000


def features(num: int, seed: int, *, countries=(0.6, 0.3, 0.1), missing=0.0, age=30.0, lengths=4, genres=20):
    random = np.random.default_rng(seed)
    country = random.choice(len(countries), num, p=countries)
    country[random.random(num) < missing] = MISSING_ID
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, lengths, num))]).astype(np.int64)
    ages = random.normal(age, 10, (num, 1)).astype(np.float32)
    ages[random.random(num) < missing] = np.nan
    users = random.integers(0, 10**6, num)
    lists = (Ragged(random.integers(0, genres, offsets[-1]), offsets),)
    return Features(np.stack([country, users], axis=1).astype(np.int64), lists, ages)


class Stream:
    """Scores of a stream of samples, with features that may change."""

    def __init__(self, **settings) -> None:
        self.scores = ProgressiveScores(("click",), WINDOW, ScoresConfig(**settings), SCHEMA)
        self.seed = 0

    def add(self, num: int, *, rate: float = 0.2, score: float = -1.4, **shape) -> "Stream":
        self.seed += 1
        random = np.random.default_rng(1000 + self.seed)
        logits = random.normal(score, 0.5, (num, 1)).astype(np.float32)
        labels = (random.random((num, 1)) < rate).astype(np.float32)
        self.scores.observe(logits, labels, np.ones(num, np.float32), features(num, self.seed, **shape))
        return self

    @property
    def drift(self):
        return self.scores.detailed_document(lambda feature, row_id: str(row_id)).get("drift")

    @property
    def levels(self):
        return {each["name"]: each["level"] for each in self.drift["features"]}


def test_psi_equals_its_formula():
    before, now = np.array([50, 30, 20, 0]), np.array([25, 30, 35, 10])
    expected = 0.0
    for p, q in zip((now + 0.5) / 102, (before + 0.5) / 102, strict=True):
        expected += (p - q) * np.log(p / q)
    assert psi(before, now) == pytest.approx(expected)
    assert psi(before, before) == 0
    assert psi(before, np.zeros(4)) is None
    assert psi_level(0.3, 10 * before, 10 * now) == "large"
    assert psi_level(0.12, 10 * before, 10 * now) == "moderate"
    assert psi_level(0.09, 10 * before, 10 * now) == "none"
    assert psi_level(0.3, before // 10, now // 10) == "none"  # ten samples differ by so much by chance


def test_codes_keep_the_order_of_numbers_and_tell_missing_apart():
    numbers = np.array([-np.inf, -3.5, -0.0, 0.0, 1e-30, 2, 1e30, np.inf, np.nan], np.float32)
    codes = number_codes(numbers)
    assert (np.diff(codes[:-1].astype(np.int64)) >= 0).all()
    assert (codes[-1], codes[:-1].min() > 1) == (0, True)
    ids = id_codes(np.array([0, 1, -1, MISSING_ID, 2**62]))
    assert (ids[3], len(set(ids.tolist()))) == (0, 5)
    assert ids[[0, 1, 2, 4]].min() >= 2
    assert ids.max() < 1 << 16


def test_a_steady_stream_does_not_drift():
    stream = Stream()
    for _ in range(20):
        stream.add(500)
    assert stream.drift["level"] == "none"
    assert stream.drift["most"] is None
    assert max(each["psi"] for each in stream.drift["features"]) < 0.1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"countries": (0.2, 0.2, 0.6)}, "country"),
        ({"missing": 0.3}, "country"),
        ({"age": 45.0}, "age"),
        ({"lengths": 12}, "length of genres"),
        ({"genres": 5}, "genres"),
    ],
)
def test_the_feature_that_changed_is_named(change, name):
    stream = Stream()
    for _ in range(8):
        stream.add(500)
    for _ in range(4):
        stream.add(500, **change)
    assert stream.levels[name] == "large"
    assert stream.drift["level"] == "large"
    if "missing" not in change:
        assert stream.drift["most"] == name
        assert [each for each, level in stream.levels.items() if level == "large"] == [name]
    else:
        (country,) = (each for each in stream.drift["features"] if each["name"] == "country")
        assert country["missing"] == pytest.approx(0.3, abs=0.05)
        assert country["reference_missing"] == 0


def test_drift_of_a_column_equals_a_plain_computation():
    """With a window of fewer samples than are compared, every sample counts."""
    scores = ProgressiveScores(("click",), 800, ScoresConfig(), SCHEMA)
    before, now = features(800, 1), features(800, 2, countries=(0.3, 0.3, 0.4), age=35.0)
    for part in (before, now):
        ones = np.ones(800, np.float32)
        scores.observe(np.zeros((800, 1), np.float32), ones[:, None] * 0.5, ones, part)
        if part is before:
            scores.observe(np.zeros((0, 1), np.float32), np.zeros((0, 1), np.float32), ones[:0], before.slice(0, 0))
    found = {each["name"]: each["psi"] for each in scores.detailed_document(lambda *_: "")["drift"]["features"]}
    shares = [np.bincount(part.categorical_NC[:, 0], minlength=3) + 0.5 for part in (before, now)]
    q, p = (share / share.sum() for share in shares)
    assert found["country"] == pytest.approx(((p - q) * np.log(p / q)).sum())
    ages = np.sort(before.dense_NF[:, 0])
    edges = [-np.inf, *(ages[tenth * 80] for tenth in range(1, 10)), np.inf]
    counts = [
        np.array([((part.dense_NF >= low) & (part.dense_NF < high)).sum() for low, high in itertools.pairwise(edges)])
        for part in (before, now)
    ]
    q, p = ((count + 0.5) / (count + 0.5).sum() for count in counts)
    assert found["age"] == pytest.approx(((p - q) * np.log(p / q)).sum())


def test_label_rate_and_scores_drift():
    stream = Stream()
    for _ in range(8):
        stream.add(500)
    for _ in range(4):
        stream.add(500, rate=0.8, score=1.0)
    click = stream.drift["labels"]["click"]
    assert click["label_rate"]["reference"] == pytest.approx(0.2, abs=0.03)
    assert click["label_rate"]["recent"] == pytest.approx(0.8, abs=0.03)
    assert click["label_rate"]["level"] == click["score"]["level"] == stream.drift["level"] == "large"
    assert stream.drift["most"] is None  # no feature


def test_a_rare_label_that_doubles_is_seen_although_its_psi_is_small():
    scores = ProgressiveScores(("click",), 20_000, ScoresConfig(), SCHEMA)
    for rate in (0.01, 0.02):
        labels = np.zeros((20_000, 1), np.float32)
        labels[: int(20_000 * rate)] = 1
        zeros, ones = np.zeros((20_000, 1), np.float32), np.ones(20_000, np.float32)
        scores.observe(zeros, labels, ones, features(20_000, 1))
    rate = scores.detailed_document(lambda *_: "")["drift"]["labels"]["click"]["label_rate"]
    assert rate["psi"] < 0.02
    assert rate["level"] == "large"


def test_the_reference_follows_the_stream():
    points, num = [], 0
    while len(points) < 8:
        num = next_snapshot(num, 100, 1000)
        points.append(num)
    assert points == [100, 200, 400, 800, 1000, 2000, 3000, 4000]
    assert (next_snapshot(0, 100, 0), next_snapshot(100, 100, 0)) == (100, None)
    assert next_snapshot(50, 100, 30) == 100
    stream = Stream(reference_samples=WINDOW)
    for _ in range(3):
        stream.add(WINDOW)
    assert stream.drift["reference_until"] == 2 * WINDOW
    for _ in range(2):
        stream.add(WINDOW, age=60.0)
    assert stream.levels["age"] == "none"  # the reference has it too
    still = Stream(reference_samples=0)
    for _ in range(5):
        still.add(WINDOW)
    still.add(WINDOW, age=60.0)
    assert still.drift["reference_until"] == WINDOW
    assert still.levels["age"] == "large"


def test_before_the_first_window_is_full_there_is_no_drift_and_it_can_be_disabled():
    assert Stream().add(WINDOW - 1).drift is None
    stream = Stream(drift=False).add(2 * WINDOW)
    assert stream.drift is None
    assert len(stream.scores.state()["drift.codes"]) == 0


def test_memory_is_bounded():
    assert sampling_stride(20_000, 40) == 20
    assert 4 * 1000 * (20_000 / sampling_stride(20_000, 1000)) <= 1 << 20
    assert sampling_stride(100, 5) == 1
    stream = Stream()
    for _ in range(10):
        stream.add(1000)
    assert len(stream.scores.state()["drift.codes"]) in (WINDOW, WINDOW // 2)


def test_a_column_that_is_new_has_no_drift_until_the_next_reference():
    drift = WindowDrift(("click",))
    drift.set_columns([("country", False)])
    drift.add(np.full((50, 1), 7, np.uint32), np.arange(50), first=0)
    window = {"labels": np.zeros((50, 1), np.float32), "weights": np.ones(50, np.float32)}
    window |= {name: np.zeros((50, 1)) for name in ("scores", "losses", "probabilities")}
    columns = ProgressiveScores(("click",), 50, ScoresConfig(), SCHEMA)._wanted.columns
    drift.set_columns(columns[:1])
    drift.take_snapshot(50, window)
    drift.set_columns(columns)
    assert [each["name"] for each in drift.document(50, window)["features"]] == ["country"]
    drift.set_columns(columns[1:])
    assert drift.document(50, window)["features"] == []
