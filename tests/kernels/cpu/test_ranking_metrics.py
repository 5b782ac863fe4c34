"""Ranking metrics equal plain loops: over pairs, and over every order of samples of equal scores."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.kernels.cpu.ranking_metrics import AUC, NUM_PLAIN, RECIPROCAL_RANK, group_values, sort_by_score

AT = np.array([1, 3, 10])


def values(scores, labels, at=AT):
    starts = np.array([0, len(scores)])
    return group_values(np.array(scores, np.float64), np.array(labels, np.float64), starts, np.array(at))[0]


def orders(scores, labels):
    """Every order by descending score, of labels."""
    pairs = sorted(zip(scores, labels, strict=True), key=lambda pair: -pair[0])
    blocks = [[y for _, y in block] for _, block in itertools.groupby(pairs, key=lambda pair: pair[0])]
    for each in itertools.product(*map(itertools.permutations, blocks)):
        yield list(itertools.chain(*each))


def plain(ordered, k):
    """Reciprocal rank, NDCG@k and recall@k of labels in one order."""
    gain = sum(y / math.log2(i + 2) for i, y in enumerate(ordered[:k]))
    ideal = sum(y / math.log2(i + 2) for i, y in enumerate(sorted(ordered, reverse=True)[:k]))
    first = next(i for i, y in enumerate(ordered) if y > 0)
    return 1 / (first + 1), gain / ideal, sum(ordered[:k]) / sum(ordered)


@given(
    samples=st.lists(
        st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.sampled_from([0.0, 0.0, 1.0, 0.5])), min_size=1, max_size=7
    )
)
def test_metrics_are_means_over_the_orders_of_equal_scores(samples):
    scores, labels = zip(*samples, strict=True)
    found = values(scores, labels)
    if not any(labels):
        assert np.isnan(found).all()
        return
    for place, k in enumerate(AT.tolist()):
        every = [plain(ordered, k) for ordered in orders(scores, labels)]
        expected = np.mean(every, axis=0)
        assert found[RECIPROCAL_RANK] == pytest.approx(expected[0])
        assert found[NUM_PLAIN + place] == pytest.approx(expected[1])
        assert found[NUM_PLAIN + len(AT) + place] == pytest.approx(expected[2])
    wins = sum(y * (1 - z) * ((s > t) + 0.5 * (s == t)) for s, y in samples for t, z in samples)
    positives, negatives = sum(labels), len(labels) - sum(labels)
    if negatives > 0:
        assert found[AUC] == pytest.approx(wins / (positives * negatives))
    else:
        assert math.isnan(found[AUC])


def test_masked_labels_do_not_count_and_groups_do_not_touch():
    scores, labels = np.array([3.0, 9.0, 1.0, 2.0, 5.0]), np.array([1.0, np.nan, 0.0, 1.0, np.nan])
    found = group_values(scores, labels, np.array([0, 3, 5]), AT)
    assert found[0] == pytest.approx([1.0, 1.0, *[1.0] * 6])
    assert math.isnan(found[1, AUC])
    assert found[1, RECIPROCAL_RANK] == 1.0
    assert labels.tolist()[:1] == [1.0]  # the input is not sorted


@given(scores=st.lists(st.floats(allow_nan=False), max_size=900))
def test_samples_are_sorted_with_their_labels(scores):
    sorted_N, labels_N = np.array(scores), np.array(scores)
    sort_by_score(sorted_N, labels_N, len(scores))
    assert sorted_N.tolist() == sorted(scores, reverse=True)
    assert sorted_N.tolist() == labels_N.tolist()
