"""The simulated world: items are replaced, preferences drift, all of it a function of the seed and the time."""

import numpy as np
import pytest

from springtide.app.tools.simulated_world import SimulatorConfig, World

START_MS = 1_795_000_000_000


def test_one_percent_of_the_items_is_new_after_a_minute() -> None:
    config = SimulatorConfig()
    world, slots = World(config), np.arange(config.num_items)
    before, _ = world.items_at(slots, START_MS)
    after, ages = world.items_at(slots, START_MS + 60_000)
    replaced = after != before
    assert replaced.mean() == pytest.approx(0.01, abs=0.003)
    assert len(np.unique(np.concatenate([before, after]))) == config.num_items + replaced.sum()
    assert (ages[replaced] * 3600 <= 60.0).all()


def test_preferences_have_autocorrelation_one_half_after_two_minutes() -> None:
    world = World(SimulatorConfig(num_segments=200, num_categories=100))
    correlations = []
    for sample in range(12):
        now_ms = START_MS + sample * 3_600_000
        early, late = world.preferences(now_ms), world.preferences(now_ms + 120_000)
        correlations.append(np.corrcoef(early.ravel(), late.ravel())[0, 1])
    assert np.mean(correlations) == pytest.approx(0.5, abs=0.05)


def test_the_world_does_not_depend_on_when_the_simulator_started() -> None:
    ran_on, started_later = World(SimulatorConfig()), World(SimulatorConfig())
    for second in range(0, 100, 10):
        ran_on.preferences(START_MS + second * 1_000)
    np.testing.assert_allclose(
        ran_on.preferences(START_MS + 100_000), started_later.preferences(START_MS + 100_000), atol=1e-4
    )
