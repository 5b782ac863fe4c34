"""Steps where negatives are sampled: compiled and autograd, with the wide part and without; what each sample counts."""

import dataclasses

import numpy as np
import pytest

from springtide.app.models.losses.config import LabelLoss
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


def simulated(num: int, *, rate: float, seed: int = 0) -> tuple[list[Batch], float]:
    """Batches of clicks at true log odds of -2.5, of which negatives are kept at the rate, and of orders after them."""
    draw = np.random.default_rng(seed)
    batches, clicks, shown = [], 0.0, 0
    while shown < num:
        users_N, items_N = draw.integers(0, 5, 256), draw.integers(0, 7, 256)
        click_N = draw.random(256) < 1 / (1 + np.exp(2.5 - 0.6 * np.sin(3 * users_N) - 0.6 * np.cos(2 * items_N)))
        order_N = click_N & (draw.random(256) < 0.3)
        clicks, shown = clicks + click_N.sum(), shown + 256
        kept = np.flatnonzero(click_N | (draw.random(256) < rate))
        features = Features(np.stack([users_N, items_N], axis=1)[kept], (), np.zeros((len(kept), 0), np.float32))
        batch = batch_of(features, np.stack([click_N, order_N], axis=1)[kept])
        batches.append(dataclasses.replace(batch, rates_N=np.full(len(kept), rate, np.float32)))
    return batches, clicks / shown


@pytest.mark.parametrize("method", ["offset", "weights"])
@pytest.mark.parametrize("wide", [False, True])
def test_predictions_of_both_labels_are_those_of_all_samples(wide, method):
    sampling = NegativeSampling(0, rate=0.1, by=("item",), has_offset=method == "offset")
    losses = (LabelLoss(), LabelLoss())
    learner = make_learner(TWO, wide=wide, losses=losses, negatives=sampling)
    for batch in simulated(60_000, rate=0.1)[0]:
        learner.step(batch)
    probe, _ = simulated(60_000, rate=1.0, seed=1)
    predicted, true = np.zeros(2), np.zeros(2)
    for batch in probe:
        report = learner.step(dataclasses.replace(batch, weights_N=np.zeros_like(batch.weights_N)))
        predicted += (1 / (1 + np.exp(-report.logits_NL))).sum(axis=0)
        true += batch.labels_NL.sum(axis=0)
    np.testing.assert_allclose(predicted / true, 1.0, atol=0.08)  # some 450 clicks a 10th of which are orders
