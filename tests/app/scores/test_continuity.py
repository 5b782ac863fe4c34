"""A state and the deltas after it give the same bits as observing every sample; other settings keep what fits."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.app.scores.changed_labels import with_labels
from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.segments import BLOCK, BYTES
from springtide_client.schema import Schema
from tests.app.scores.test_drift import features
from tests.app.scores.test_progressive import draw

NUM = BLOCK + 1500
LABELS = ("click", "order")
SCHEMA = Schema(labels=LABELS, categorical=("country", "user"), multi_value=("genres",), dense=("age",))
CONFIG = ScoresConfig(
    by=("user", "country"),
    segment_bytes=2 * 2 * 3 * BYTES,
    reference_samples=700,
    request="request",
    group="country",
    group_bytes=1 << 18,
    request_seconds=3.0,
)
FEATURES = features(NUM, 5)
LOGITS, CLICKS, WEIGHTS = draw(NUM, labels=2)
CLICKS[::7, 1] = np.nan
EVENT_MS = np.cumsum(np.random.default_rng(1).integers(0, 60_000, NUM))
REQUESTS = np.arange(NUM) // 3


def make() -> ProgressiveScores:
    return ProgressiveScores(LABELS, 190, CONFIG, SCHEMA)


def observe(scores: ProgressiveScores, start: int, stop: int) -> None:
    part, seen = slice(start, stop), FEATURES.slice(start, stop)
    groups = scores.groups_of(seen, EVENT_MS[part], REQUESTS[part], None)
    scores.observe(LOGITS[part], CLICKS[part], WEIGHTS[part], seen, groups=groups)


def details(scores: ProgressiveScores):
    return scores.detailed_document(lambda feature, row_id: f"{feature} {row_id}")


def assert_same(one: ProgressiveScores, other: ProgressiveScores) -> None:
    state = other.state()
    assert one.state().keys() == state.keys()
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
    assert details(one) == details(other)


STRAIGHT = make()
observe(STRAIGHT, 0, NUM)


@settings(max_examples=8, deadline=None)
@given(splits=st.lists(st.integers(0, NUM), max_size=6), versions=st.lists(st.integers(0, 6), max_size=3))
def test_deltas_replayed_without_the_settings_equal_observing(splits, versions):
    written, bounds = make(), sorted({0, *splits, NUM})
    base, deltas = written.state(), []
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        observe(written, start, stop)
        if number in versions:
            deltas.append(written.delta())
        if number == 2:
            written.delta()
            base, deltas = written.state(), []
    deltas.append(written.delta())
    for read in (ProgressiveScores(LABELS, 190), make()):  # a compactor, a trainer
        read.restore(base)
        for delta in deltas:
            read.apply(delta)
        assert_same(read, STRAIGHT)
    assert_same(written, STRAIGHT)


def test_samples_that_wait_give_the_same_bits_as_samples_counted_at_once():
    waiting, asked = make(), make()
    for start, stop in itertools.pairwise(range(0, NUM, 211)):
        for scores in (waiting, asked):
            observe(scores, start, stop)
        asked.state_sizes()
        assert waiting.num_samples == asked.num_samples == stop
    deltas = waiting.delta(), asked.delta()
    assert deltas[0].keys() == deltas[1].keys()
    for name, array in deltas[0].items():
        np.testing.assert_array_equal(array, deltas[1][name], err_msg=name)
    assert_same(waiting, asked)


def test_a_restart_with_other_settings_keeps_what_both_measure():
    before = make()
    observe(before, 0, 3000)
    changed = ScoresConfig(by=("country",), segment_bytes=1 << 20, drift=False)
    after = ProgressiveScores(LABELS, 190, changed, SCHEMA)
    after.restore(before.state())
    observe(after, 3000, 4000)
    found = details(after)
    assert "drift" not in found
    assert list(found["tasks"]["click"]["segments"]) == ["country"]
    whole = sum(each["whole"]["samples"] for each in found["tasks"]["click"]["segments"]["country"])
    np.testing.assert_allclose(whole, WEIGHTS[:4000].sum(), rtol=1e-6)
    reader = ProgressiveScores(LABELS, 190)
    reader.restore(before.state())
    reader.apply(after.delta())
    assert_same(reader, after)


def test_other_labels_keep_the_scores_of_those_that_stay():
    kept = with_labels(STRAIGHT.state(), LABELS, ("view", "order"), window_samples=190)
    schema = Schema(labels=("view", "order"), categorical=("country", "user"), multi_value=("genres",), dense=("age",))
    scores = ProgressiveScores(("view", "order"), 190, CONFIG, schema)
    scores.restore(kept)
    now, then = details(scores), details(STRAIGHT)
    assert now["tasks"]["order"] == then["tasks"]["order"]
    assert now["whole"]["auc"] is now["window"]["auc"] is None
    assert list(now["drift"]["labels"]) == ["order"]
    assert now["drift"]["features"] == then["drift"]["features"]
    observe(scores, 0, 500)
    assert details(scores)["drift"]["labels"]


def test_a_field_that_is_new_does_not_disturb_the_others():
    scores = make()
    observe(scores, 0, 3000)
    schema = Schema(labels=LABELS, categorical=("user", "country", "device"), dense=("age", "price"))
    wider = ProgressiveScores(LABELS, 190, CONFIG, schema)
    wider.restore(scores.state())
    part = FEATURES.slice(3000, 3100)
    added = np.concatenate([part.categorical_NC[:, ::-1], np.ones((100, 1), np.int64)], axis=1)
    numbers = np.concatenate([part.dense_NF, part.dense_NF], axis=1)
    seen = type(part)(np.ascontiguousarray(added), (), numbers)
    wider.observe(LOGITS[3000:3100], CLICKS[3000:3100], WEIGHTS[3000:3100], seen)
    drift = details(wider)["drift"]
    assert sorted(each["name"] for each in drift["features"]) == ["age", "country", "user"]
    assert {each["name"]: each["level"] for each in drift["features"]}["country"] == "none"
