"""An optimizer's settings: what is accepted, and what is refused by the name of its key."""

from typing import Any

import pytest

from springtide.embeddings.optimizer import RowOptimizer
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import OptimizerStep


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_kernels_has_settings(name: str) -> None:
    optimizer = RowOptimizer.of({"name": name, "lr": 1})
    assert optimizer.step(0.5, 7) == OptimizerStep(name, 0.5, 1e-8, seed=7)
    widths = {"sgd": 0, "rowwise-adagrad": 1, "adagrad": 8, "ftrl": 16, "adam": 17}
    assert optimizer.state_width(8) == widths[name]


def test_all_settings_are_passed_to_the_step() -> None:
    values: dict[str, Any] = {"name": "ftrl", "lr": 0.1, "eps": 1e-3, "beta1": 0.1, "beta2": 0.2, "l1": 0.3, "l2": 0.4}
    values |= {"beta": 0.5, "weight_decay": 0.6, "clip_norm": 0.7}
    assert RowOptimizer.of(values).step(0.1, 3)._asdict() == values | {"seed": 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "adamw"}, 'name must be one of .*"sgd", not "adamw": did you mean "adam"?'),
        ({"lr": -0.1}, "lr must be a finite number of at least 0, not -0.1"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"lr": "fast"}, 'lr must be a finite number of at least 0, not "fast"'),
        ({"l1": True}, "l1 must be a finite number of at least 0, not true"),
        ({"eps": 0.0}, "eps must be a finite number above 0, not 0.0"),
        ({"beta1": 1.0}, "beta1 must be a number of at least 0 and below 1, not 1.0"),
        ({"beta2": -0.5}, "beta2 must be"),
        ({"l2": float("inf")}, "l2 must be a finite number"),
        ({"beta": -1}, "beta must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"clip_norm": -1}, "clip_norm must be"),
        ({"lr": 0.5, "weight_decay": 3}, "lr \\* weight_decay must be at most 1"),
        ({"name": "ftrl", "lr": 0}, "lr must be above 0 for ftrl"),
        ({"momentum": 0.9}, "unknown key 'momentum': known here: beta, beta1"),
    ],
)
def test_an_invalid_setting_is_reported_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RowOptimizer.of(options)


def test_a_changed_learning_rate_is_checked_too() -> None:
    optimizer = RowOptimizer.of({"name": "ftrl", "lr": 0.1, "l1": 0.5})
    assert optimizer.with_lr(0.2) == RowOptimizer.of({"name": "ftrl", "lr": 0.2, "l1": 0.5})
    with pytest.raises(ValueError, match="ftrl"):
        optimizer.with_lr(0)
