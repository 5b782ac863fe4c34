"""The filter that knows the simulated world."""

import numpy as np

from springtide.app.scores.auc import click_auc
from springtide.app.tools.simulated_world import SimulatorConfig
from tests.bench.quality.online import WINDOW, shares_of_best
from tests.bench.quality.simulated_log import simulate_log
from tests.bench.quality.world_filter import filtered_logits, observe


def test_it_sees_the_clicks_of_the_log_and_predicts_better_than_what_is_no_secret() -> None:
    samples, probability_N = simulate_log(3000)
    clicked_N, seen = samples.labels_NL[:, 0] > 0.5, observe(3000, SimulatorConfig())
    np.testing.assert_array_equal(seen.clicked_N, clicked_N)
    aucs = [click_auc(each_N, clicked_N) for each_N in (seen.constant_N, filtered_logits(3000), probability_N)]
    assert None not in aucs
    assert aucs == sorted(aucs)  # type: ignore[type-var]
    assert aucs[1] - aucs[0] > 0.05


def test_a_click_is_scored_before_it_is_learned() -> None:
    # a product of another shape may round otherwise
    np.testing.assert_allclose(filtered_logits(900)[:600], filtered_logits(600), rtol=1e-9)


def test_the_truth_makes_all_of_the_way() -> None:
    truth_N = np.random.default_rng(0).normal(size=WINDOW * 2 + 5)
    clicked_N = np.random.default_rng(1).random(len(truth_N)) < 1 / (1 + np.exp(-truth_N))
    assert shares_of_best(truth_N, truth_N, clicked_N) == [1.0, 1.0]
    assert shares_of_best(np.zeros_like(truth_N), truth_N, clicked_N) == [0.0, 0.0]
