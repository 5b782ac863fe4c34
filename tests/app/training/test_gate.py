"""What trips the health gate and what does not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from springtide.app.models.wide_part import WidePart
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.config import GateConfig
from springtide.app.training.gate import Gate, mean_and_error
from springtide.app.version_log.trainer_status import GateStatus
from springtide_client.schema import Schema


class Model:
    """A net, its scores, and a gate before them."""

    def __init__(self, window: int = 2000, **settings) -> None:
        self.gate = Gate(GateConfig(**settings), window)
        self.net = torch.nn.Linear(4, 4)
        self.scores = ProgressiveScores(("click",), window)
        self.learner = SimpleNamespace(model=self.net, steps=0)
        self.samples, self.number = 0, 10
        self.random = np.random.default_rng(0)
        self.gate.reset(self.number, self.learner, 0)

    def learn(self, num: int, *, wrong: float = 0.0) -> None:
        """So many samples, of which some share is predicted the wrong way round."""
        labels = (self.random.random(num) < 0.3).astype(np.float32)
        logits = np.where(labels > 0, 2.0, -2.0) * np.where(self.random.random(num) < wrong, -3, 1)
        self.scores.observe(logits[:, None].astype(np.float32), labels[:, None], np.ones(num, np.float32))
        self.learner.steps += 1
        self.samples += num

    def judge(self):
        verdict = self.gate.judge(self.learner, self.scores, self.samples)
        if verdict is None:
            self.number += 1
            self.gate.on_published(self.number, self.learner, self.samples)
        return verdict


def test_a_healthy_model_passes():
    model = Model()
    for _ in range(40):
        model.learn(100, wrong=0.1)
        assert model.judge() is None
    assert model.gate.status() == GateStatus(state="open", action="alert")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_non_finite_parameter_trips_the_gate(value):
    model = Model()
    model.learn(10)
    assert model.judge() is None
    model.learn(10)
    with torch.no_grad():
        model.net.bias[2] = value
    verdict = model.judge()
    assert (verdict.reason, verdict.good) == ("not_finite", 11)
    assert "bias" in verdict.detail
    assert model.judge() is verdict
    assert model.gate.status().state == "holding"
    model.gate.reset(20, model.learner, 10)
    assert (model.gate.status().state, model.gate.status().reason) == ("open", "not_finite")


def test_a_norm_that_grows_in_small_steps_trips_the_gate():
    model = Model(logloss_samples=1000)
    verdicts = []
    for _ in range(30):
        model.learn(50)
        with torch.no_grad():
            model.net.weight.mul_(1.5)
        verdicts.append(model.judge())
        if verdicts[-1]:
            break
    assert verdicts[-1].reason == "norm"
    slow = Model(logloss_samples=50)
    for _ in range(30):
        slow.learn(100)
        with torch.no_grad():
            slow.net.weight.mul_(1.5)
        assert slow.judge() is None


def test_a_net_with_a_tiny_norm_may_grow():
    model = Model()
    with torch.no_grad():
        model.net.weight.zero_()
        model.net.bias.fill_(1e-6)
    model.gate.reset(10, model.learner, 0)
    model.learn(10)
    with torch.no_grad():
        model.net.weight.fill_(1.0)
    assert model.judge() is None


def test_a_rise_names_a_good_version_from_before_it_began():
    model = Model(logloss_samples=400)
    for _ in range(20):
        model.learn(100, wrong=0.05)
        assert model.judge() is None
    good, verdict = model.number, None
    while verdict is None:
        model.learn(100, wrong=0.9)
        verdict = model.judge()
    assert verdict.reason == "logloss"
    assert verdict.good <= good
    assert "click" in verdict.detail


def test_a_heartbeat_version_is_as_good_as_the_one_before_it():
    model = Model()
    model.learn(10)
    for _ in range(3):
        assert model.judge() is None
    with torch.no_grad():
        model.net.weight[0, 0] = float("nan")
    model.learn(10)
    assert model.judge().good == model.number


def test_a_rise_that_began_before_the_start_is_looked_up_in_the_log():
    model = Model(logloss_samples=400)
    for _ in range(20):
        model.learn(100, wrong=0.05)
        assert model.judge() is None
    model.learn(100, wrong=0.9)
    calls = []
    model.gate = Gate(model.gate.config, 2000, look_back=lambda samples: calls.append(samples) or 7)
    model.gate.reset(model.number, model.learner, model.samples)
    while (verdict := model.judge()) is None:
        model.learn(100, wrong=0.9)
    assert (verdict.good, calls) == (7, [model.samples - 400])


def test_a_finite_net_with_non_finite_scores_is_held_back():
    model = Model(logloss_samples=400)
    for _ in range(10):
        model.learn(100, wrong=0.05)
        assert model.judge() is None
    good, verdict, num = model.number, None, 0
    while verdict is None:
        model.scores.observe(np.full((100, 1), np.nan, np.float32), np.zeros((100, 1), np.float32), np.ones(100))
        model.learner.steps, model.samples, num = model.learner.steps + 1, model.samples + 100, num + 100
        verdict = model.judge()
    assert 200 < num <= 300
    assert verdict.reason == "not_finite"
    assert "of the last 400 samples" in verdict.detail
    assert verdict.good <= good


def test_a_few_samples_without_a_score_do_not_trip_the_gate():
    model = Model(logloss_samples=400)
    for _ in range(30):
        model.learn(90, wrong=0.05)
        model.scores.observe(np.full((10, 1), np.inf, np.float32), np.ones((10, 1), np.float32), np.ones(10))
        assert model.judge() is None


@pytest.mark.parametrize("settings", [{"logloss_ratio": float("inf")}, {"logloss_ratio": 30.0}])
def test_the_thresholds_are_settings(settings):
    model = Model(logloss_samples=400, **settings)
    for wrong in (0.05, 0.9):
        for _ in range(20):
            model.learn(100, wrong=wrong)
            assert model.judge() is None


def test_noise_of_rare_clicks_does_not_trip_the_gate():
    model = Model(logloss_samples=500)
    for _ in range(200):
        labels = (model.random.random(100) < 0.002).astype(np.float32)
        model.scores.observe(np.full((100, 1), -6.2, np.float32), labels[:, None], np.ones(100, np.float32))
        model.learner.steps += 1
        model.samples += 100
        assert model.judge() is None


def test_losses_are_not_judged_before_the_window_has_two_halves():
    model = Model(logloss_samples=400)
    model.learn(300, wrong=0.0)
    model.learn(400, wrong=1.0)
    assert model.judge() is None


def test_a_short_window_is_split_into_halves():
    model = Model(window=200, logloss_samples=2000)
    for _ in range(4):
        model.learn(50, wrong=0.05)
        assert model.judge() is None
    model.learn(100, wrong=1.0)
    assert model.judge().reason == "logloss"


def test_mcalls_labels_and_samples_without_weight_do_not_trip_the_gate():
    assert np.isnan(mean_and_error(np.ones(3), np.zeros(3))[0])
    model = Model(logloss_samples=100)
    model.scores.observe(
        np.zeros((400, 1), np.float32), np.full((400, 1), np.nan, np.float32), np.ones(400, np.float32)
    )
    model.learner.steps += 1
    assert model.judge() is None


def run_at(model: Model, rate: float, logit: float, num: int = 20):
    """So many hundred samples at a label rate, all predicted alike; the verdict if there is one."""
    for _ in range(num):
        labels = (model.random.random(100) < rate).astype(np.float32)
        model.scores.observe(np.full((100, 1), logit, np.float32), labels[:, None], np.ones(100, np.float32))
        model.learner.steps += 1
        model.samples += 100
        if (verdict := model.judge()) is not None:
            return verdict
    return None


def test_predictions_that_leave_the_clicks_seen_trip_the_gate():
    model = Model(logloss_samples=500, logloss_ratio=float("inf"))
    assert run_at(model, 0.02, -3.9) is None
    good = model.number
    verdict = run_at(model, 0.02, 0.0)  # from 2 % to 50 %
    assert verdict.reason == "calibration"
    assert verdict.good <= good
    assert "clicks were predicted" in verdict.detail
    assert "calibration_ratio is 10" in verdict.detail


def test_clicks_that_no_longer_arrive_trip_the_gate():
    model = Model(logloss_samples=500)
    assert run_at(model, 0.3, -0.85) is None
    assert run_at(model, 0.0, -0.85).reason == "calibration"


@pytest.mark.parametrize(
    ("before", "after", "logit", "settings"),
    [
        (0.02, 0.02, 0.0, {"calibration_ratio": float("inf")}),
        (0.02, 0.02, 0.0, {"calibration_ratio": 100.0}),
        (0.05, 0.4, -2.94, {}),  # the rate is eight times as high: drift that the model will learn
        (0.0005, 0.0, -6.2, {}),  # too few clicks to tell
    ],
)
def test_drift_and_chance_do_not_trip_the_gate_on_calibration(before, after, logit, settings):
    model = Model(logloss_samples=500, logloss_ratio=float("inf"), **settings)
    assert run_at(model, before, float(np.log(before / (1 - before)))) is None
    assert run_at(model, after, logit) is None


def test_a_model_that_was_never_calibrated_does_not_trip_the_gate():
    model = Model(logloss_samples=500, logloss_ratio=float("inf"))
    assert run_at(model, 0.002, 0.0, 10) is None  # a new net says 50 %
    assert run_at(model, 0.002, -1.0, 10) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"action": "panic"}, '"alert", "rollback"'),
        ({"logloss_ratio": 1.0}, "logloss_ratio"),
        ({"norm_ratio": float("nan")}, "norm_ratio"),
        ({"calibration_ratio": 0.5}, "calibration_ratio"),
        ({"logloss_samples": 0}, "logloss_samples"),
        ({"max_skipped": 0}, "max_skipped"),
    ],
)
def test_invalid_settings_are_rejected(settings, says):
    with pytest.raises(ValueError, match=says):
        GateConfig(**settings)


class WideModel(Model):
    """The same with a wide part, whose arrays grow."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.net.add_module("wide", WidePart(Schema(labels=("click",), categorical=("user", "item")), crosses=4))


def test_information_and_statistics_of_the_wide_part_grow_freely():
    model = WideModel(logloss_samples=500)
    for number in range(20):
        model.learn(100, wrong=0.1)
        arrays = model.net.wide.arrays
        for name, array in arrays.named().items():
            if "information" in name or "totals" in name or "samples" in name:
                array[...] = 10 ** min(6, number)
        assert model.judge() is None


def test_a_wide_part_that_explodes_trips_the_gate():
    model = WideModel(logloss_samples=500)
    model.learn(1000)
    assert model.judge() is None
    model.net.wide.arrays.gates_LTB[0, 1, 3] = np.nan
    model.learn(10)
    verdict = model.judge()
    assert verdict.reason == "not_finite"
    assert "wide.gates_LTB" in verdict.detail
    exploded = WideModel(logloss_samples=500)
    exploded.learn(1000)
    assert exploded.judge() is None
    exploded.learn(500, wrong=0.6)  # what exploded weights do to the scores
    assert exploded.judge().reason == "logloss"


def test_a_values_squared_error_may_not_explode_either():
    model = Model()
    model.scores = ProgressiveScores(("seconds",), 2000, links=("log1p",))
    for error in (*[0.5] * 20, *[5.0] * 20):
        seconds = model.random.exponential(100, 100).astype(np.float32)
        outputs = np.log1p(seconds) + model.random.normal(0, error, 100)
        model.scores.observe(outputs[:, None].astype(np.float32), seconds[:, None], np.ones(100, np.float32))
        model.learner.steps += 1
        model.samples += 100
        verdict = model.judge()
        assert (verdict is None) or error == 5.0
    assert verdict.reason == "logloss"
    assert "the squared error of the last" in verdict.detail
