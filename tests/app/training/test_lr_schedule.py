"""The learning rate's factor is a pure function of the samples trained."""

import math

import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.training.config import TrainConfig
from springtide.app.training.lr_schedule import LearningRateSchedule

RAMP = {"warmup_samples": 100}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {1: 1.0, 10**9: 1.0}),
        (RAMP, {1: 0.01, 50: 0.5, 100: 1.0, 101: 1.0}),
        ({"name": "linear", "decay_samples": 1000, "final_factor": 0.2}, {1: 0.9992, 500: 0.6, 1000: 0.2, 5000: 0.2}),
        ({"name": "linear", "decay_samples": 1000, **RAMP}, {50: 0.5, 100: 1.0, 600: 0.55, 1100: 0.1, 9999: 0.1}),
        ({"name": "cosine", "decay_samples": 1000, **RAMP}, {100: 1.0, 350: 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2}),
        ({"name": "cosine", "decay_samples": 1000, "final_factor": 0}, {500: 0.5, 1000: 0.0, 1001: 0.0}),
        ({"name": "inverse-sqrt", **RAMP}, {50: 0.5, 100: 1.0, 400: 0.5, 10_000: 0.1}),
        ({"name": "piecewise", "boundaries": [10, 20], "factors": [0.5, 0.1]}, {9: 1, 10: 0.5, 19: 0.5, 20: 0.1}),
    ],
)
def test_factors_by_samples_trained(settings, expected) -> None:
    schedule = LearningRateSchedule.of(settings)
    assert {samples: schedule.factor(samples) for samples in expected} == pytest.approx(expected)
    assert schedule.is_constant == (settings == {})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": "cosine"}, 'lr_schedule decay_samples must be given with name = "cosine"'),
        ({"decay_samples": 5}, 'lr_schedule decay_samples does not go with name = "constant"'),
        ({"name": "inverse-sqrt"}, "lr_schedule warmup_samples must be at least 1"),
        ({"name": "piecewise"}, 'lr_schedule boundaries must be given with name = "piecewise"'),
        ({"boundaries": [3]}, 'lr_schedule boundaries does not go with name = "constant"'),
        ({"name": "piecewise", "boundaries": [3]}, "boundaries and factors must be as many, not 1 and 0"),
        ({"name": "piecewise", "boundaries": [3, 3], "factors": [1.0, 1.0]}, "boundaries must be above 0 and ascend"),
        ({"name": "piecewise", "boundaries": [3], "factors": [2.0]}, "factors must be from 0 to 1, not"),
        ({"name": "cosin"}, 'did you mean "cosine"'),
        ({"warm_up": 1}, "did you mean warmup_samples"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_refused(settings, error) -> None:
    with pytest.raises(ValueError, match=error):
        TrainConfig(lr_schedule=settings)


def test_other_settings_that_do_not_go_together_are_refused(tmp_path) -> None:
    for more, error in (
        ({"clip_norm": 1, "clip_value": 1}, "clip_norm and clip_value do not go together"),
        ({"optimizer": {"weight_decay": 0.1}}, 'weight_decay does not go with name = "adam": adamw has it'),
        ({"optimizer": {"momentum": 0.9}}, 'momentum goes with name = "sgd"'),
        ({"optimizer": {"name": "sgd", "lr": 3, "weight_decay": 0.5}}, "at most 1"),
    ):
        with pytest.raises(ValueError, match=error):
            TrainConfig(**more)
    path = tmp_path / "springtide.toml"
    start = 'name = "a"\n[schema]\nlabel = "click"\ncategorical = ["user"]\n[train]\nlr_schedule = { rows = true }\n'
    path.write_text(start + '[table]\noptimizer = { name = "ftrl" }\n')
    with pytest.raises(UserError, match="does not go with ftrl"):
        load_config(path)
