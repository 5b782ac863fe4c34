"""Sums over groups of scores, against numpy."""

import numpy as np
import pytest

from springtide.kernels.cpu.score_groups import bin_sums, pair_sums, top_sums


def groups(num: int):
    random = np.random.default_rng(num)
    positive_G, negative_G = (random.random(num) * (random.random(num) < 0.7) for _ in range(2))
    return np.sort(random.random(num)), positive_G, negative_G


@pytest.mark.parametrize("num", [0, 1, 7, 1000])
def test_pairs_in_the_right_order_count_and_ties_half(num):
    _, positive_G, negative_G = groups(num)
    positives, negatives, pairs = pair_sums(positive_G, negative_G)
    assert (positives, negatives) == pytest.approx((positive_G.sum(), negative_G.sum()))
    below_GG = np.tri(num, k=-1) + 0.5 * np.eye(num)  # of group g, the groups below it
    assert pairs == pytest.approx(positive_G @ below_GG @ negative_G)


@pytest.mark.parametrize("num", [0, 1, 7, 1000])
def test_every_group_is_in_the_bin_of_its_middle(num):
    predicted_G, positive_G, negative_G = groups(num)
    weight_G = positive_G + negative_G
    bins_G = (20 * (np.cumsum(weight_G) - weight_G / 2) / max(weight_G.sum(), 1e-300)).astype(int)
    expected_B3 = np.zeros((20, 3))
    for column, of_group in enumerate((weight_G, positive_G, predicted_G * weight_G)):
        np.add.at(expected_B3[:, column], bins_G.clip(max=19), of_group)
    np.testing.assert_allclose(bin_sums(predicted_G, positive_G, negative_G, 20), expected_B3, atol=1e-12)


@pytest.mark.parametrize("num", [1, 7, 1000])
def test_the_group_at_the_border_of_the_top_counts_in_part(num):
    _, positive_G, negative_G = groups(num)
    until_G = np.cumsum(positive_G + negative_G)
    below = np.interp(0.9 * until_G[-1], [0, *until_G], [0, *np.cumsum(positive_G)])
    expected = positive_G.sum(), positive_G.sum() - below
    assert top_sums(positive_G, negative_G, 0.1) == pytest.approx(expected)
    assert top_sums(positive_G[:0], negative_G[:0], 0.1) == (0, 0)
