"""Steps where negatives are sampled: compiled and autograd, with the wide part and without; what each sample counts."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from springtide.app.models.losses.config import LabelLoss
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.sample_weights import SampleWeights
from springtide.stream.columns import Batch
from springtide.stream.negatives import NegativeSampling
from springtide_client.features import Features
from springtide_client.schema import Schema
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.app.training.step.test_compiled_step import make_learner
from tests.support.batches import batch_of

RATES = np.array([0.1, 0.5, 1.0], np.float32)
TWO = Schema(labels=("click", "order"), categorical=("user", "item"))


def sampled(batch: Batch) -> Batch:
    return dataclasses.replace(batch, rates_N=RATES[np.arange(len(batch)) % 3])


@pytest.mark.parametrize("has_offset", [True, False])
@pytest.mark.parametrize("wide", [False, True])
def test_a_program_learns_what_autograd_learns(wide, has_offset):
    sampling = NegativeSampling(0, has_offset=has_offset, rate_field="kept")
    compiled, other = (make_learner(SCHEMA, wide=wide, negatives=sampling) for _ in range(2))
    other.compiled = None
    for number in range(25):
        batch = sampled(make_batch(number, 1 + 13 * number % 40))
        ours, wanted = compiled.step(batch), other.step(batch)
        np.testing.assert_allclose(ours.logits_NL, wanted.logits_NL, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(ours.loss, wanted.loss, rtol=2e-3, atol=2e-3)
        np.testing.assert_array_equal(ours.weights_N, wanted.weights_N)
    tensors = compiled.dense_tensors()
    for name, tensor in other.dense_tensors().items():
        np.testing.assert_allclose(tensors[name].numpy(), tensor.numpy(), rtol=5e-3, atol=5e-3, err_msg=name)


@pytest.mark.parametrize("wide", [False, True])
def test_rates_of_1_change_no_bit(wide):
    plain, other = make_learner(SCHEMA, wide=wide), make_learner(SCHEMA, wide=wide, negatives=NegativeSampling(0))
    for number in range(10):
        batch = make_batch(number, 20)
        rates_N = np.ones(len(batch), np.float32)
        ours, wanted = other.step(dataclasses.replace(batch, rates_N=rates_N)), plain.step(batch)
        np.testing.assert_array_equal(ours.logits_NL, wanted.logits_NL)
    for name, tensor in plain.dense_tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), other.dense_tensors()[name].numpy(), err_msg=name)


def test_a_kept_negative_counts_for_those_that_were_dropped():
    features = Features(np.zeros((4, 2), np.int64), (), np.zeros((4, 0), np.float32))
    batch = batch_of(features, [[0, 1], [1, 0], [0, 0], [np.nan, 1]])
    batch = dataclasses.replace(
        batch, rates_N=np.array([0.5, 0.5, 0.25, 0.5], np.float32), weights_N=np.array([1, 1, 3, 1], np.float32)
    )
    weights = SampleWeights.of(batch, NegativeSampling(0, rate=0.5, by=("item",)))
    assert weights.counted_N.tolist() == [2, 1, 12, 1]
    assert weights.loss_NL.tolist() == [[1, 2], [1, 1], [3, 12], [1, 1]]
    np.testing.assert_allclose(weights.offsets_NL[:, 0], -np.log(batch.rates_N))
    assert not weights.offsets_NL[:, 1].any()
    weighed = SampleWeights.of(batch, NegativeSampling(0, rate=0.5, by=("item",), has_offset=False))
    assert weighed.loss_NL.tolist() == [[2, 2], [1, 1], [12, 12], [1, 1]]
    assert not weighed.offsets_NL.any()
    assert SampleWeights.of(batch, None) is None


def simulated(num: int, rates: Sequence[float], *, seed: int = 0) -> Iterator[tuple[Batch, npt.NDArray[Any]]]:
    """Batches of clicks, and of orders after them, and the true log odds of the clicks.

    Of the batches, which follow each other in turn, negatives are kept at these rates.
    """
    draw = np.random.default_rng(seed)
    for number in range(num):
        rate = rates[number * len(rates) // num]
        users_N, items_N = draw.integers(0, 5, 2048), draw.integers(0, 7, 2048)
        logit_N = 0.6 * np.sin(3 * users_N) + 0.6 * np.cos(2 * items_N) - 2.5
        click_N = draw.random(2048) < 1 / (1 + np.exp(-logit_N))
        order_N = click_N & (draw.random(2048) < 0.3)
        kept = np.flatnonzero(click_N | (draw.random(2048) < rate))
        features = Features(np.stack([users_N, items_N], axis=1)[kept], (), np.zeros((len(kept), 0), np.float32))
        batch = batch_of(features, np.stack([click_N, order_N], axis=1)[kept])
        yield dataclasses.replace(batch, rates_N=np.full(len(kept), rate, np.float32)), logit_N[kept]


def logits_after(learner: Learner) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Logits of samples that were not sampled, which are not learned, (N, L), and the true log odds of their clicks."""
    found = []
    for batch, logit_N in simulated(4, [1.0], seed=1):
        report = learner.step(dataclasses.replace(batch, weights_N=np.zeros_like(batch.weights_N)))
        found.append((report.logits_NL, logit_N))
    return np.concatenate([logits for logits, _ in found]), np.concatenate([logits for _, logits in found])


def calibration(logits_N: npt.NDArray[Any], true_N: npt.NDArray[Any]) -> float:
    return float((1 / (1 + np.exp(-logits_N))).sum() / (1 / (1 + np.exp(-true_N))).sum())


@pytest.mark.parametrize("has_offset", [True, False], ids=["offset", "weights"])
@pytest.mark.parametrize("wide", [False, True], ids=["net", "wide"])
def test_predictions_of_all_labels_are_those_of_all_samples(wide, has_offset):
    sampling = NegativeSampling(0, rate=0.1, by=("item",), has_offset=has_offset)
    learner = make_learner(TWO, wide=wide, losses=(LabelLoss(), LabelLoss()), negatives=sampling)
    full = make_learner(TWO, wide=wide, losses=(LabelLoss(), LabelLoss()))
    for batch, _ in simulated(150, [0.1]):
        learner.step(batch)
    for batch, _ in simulated(150, [1.0]):
        full.step(batch)
    (logits_NL, true_N), (full_NL, _) = logits_after(learner), logits_after(full)
    assert calibration(logits_NL[:, 0], true_N) == pytest.approx(1, abs=0.02)
    assert calibration(logits_NL[:, 1], np.log(0.3 / (0.7 + np.exp(-true_N)))) == pytest.approx(
        1, abs=0.06
    )  # by weights of 10
    assert np.abs(logits_NL[:, 0] - full_NL[:, 0]).mean() < 0.1


@pytest.mark.parametrize("wide", [False, True], ids=["net", "wide"])
def test_another_rate_in_mid_stream_moves_no_prediction(wide):
    learner = make_learner(TWO, wide=wide, negatives=NegativeSampling(0, rate=0.1, by=("item",)))
    batches = list(simulated(160, [1.0, 0.02, 0.3, 0.05]))
    errors = []
    for number, (batch, true_N) in enumerate(batches):
        report = learner.step(batch)
        if number >= 40:  # scored before they are learned, each kept negative for those that were not
            weights_N = report.weights_N
            predicted, wanted = (1 / (1 + np.exp(-one)) for one in (report.logits_NL[:, 0], true_N))
            errors.append((weights_N * predicted).sum() / (weights_N * wanted).sum() - 1)
    assert np.abs(np.mean(np.reshape(errors, (3, 40)), axis=1)).max() < 0.04
