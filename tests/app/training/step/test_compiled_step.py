"""A learner whose net is a program learns what one learns by autograd, up to the rounding of sums in another order."""

import dataclasses

import numpy as np
import pytest

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.losses.loss import add_task_weights
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.collection import open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.stream.negatives import NegativeSampling
from springtide_client.schema import Schema
from tests.app.training.random_clicks import SCHEMA, make_batch

NUM_STEPS = 25
SUMMED = dataclasses.replace(SCHEMA, pooling={"genres": "sum"})
WEIGHTED = dataclasses.replace(SCHEMA, weighted=("genres",))
WEIGHTED_SUMS = dataclasses.replace(SUMMED, weighted=("genres",))
GREATEST = dataclasses.replace(SCHEMA, pooling={"genres": "max"})


def batches_of(num: int, schema: Schema = SCHEMA) -> list:
    """Batches of 1 to 40 samples; some have weights, and labels that are masked."""
    batches = [make_batch(number, 1 + 13 * number % 40, schema) for number in range(num)]
    draw = np.random.default_rng(0)
    for batch in batches[::3]:
        batch.weights_N[:] = draw.uniform(0, 2, len(batch))
        batch.labels_NL[draw.random(batch.labels_NL.shape) < 0.2] = np.nan
    return batches


def make_learner(
    schema: Schema,
    *,
    wide: bool,
    losses: tuple[LabelLoss, ...] = (),
    task_weights: bool = False,
    negatives: NegativeSampling | None = None,
    **train: object,
) -> Learner:
    settings = TableConfig(dim=8, device_bytes="8MiB")
    table = open_tables(
        with_wide_rows(settings, schema, crosses=True) if wide else settings,
        backend("cpu"),
        lambda name, own, admission: EmbeddingTable(with_adagrad_eps(own), seed=0, admission=admission),
    )
    config = ModelConfig(wide=wide)
    model = build_model(config, ModelSpec.of(schema, 8), seed=0)
    add_wide_part(model, config, schema)
    if task_weights:
        add_task_weights(model, len(schema.labels))
    return Learner(model, table, TrainConfig(bfloat16=False, **train), schema, losses=losses, negatives=negatives)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "schema", [SCHEMA, SUMMED, WEIGHTED, WEIGHTED_SUMS], ids=["mean", "sum", "mean by weights", "sum by weights"]
)
@pytest.mark.parametrize(
    ("losses", "train"),
    [
        ((), {}),
        ((LabelLoss(name="focal", weight=0.5),), {}),
        ((), {"task_weights": True, "clip_norm": 0.01}),
        ((), {"clip_norm": 0.01, "accumulate_batches": 3, "ema_half_life_samples": 50}),
    ],
    ids=["plain", "focal", "task weights", "gathered"],
)
def test_it_learns_what_autograd_learns(schema, wide, losses, train):
    compiled, other = (make_learner(schema, wide=wide, losses=losses, **train) for _ in range(2))
    assert compiled.compiled is not None
    other.compiled = None
    for batch in batches_of(NUM_STEPS, schema):
        ours, wanted = compiled.step(batch), other.step(batch)
        np.testing.assert_allclose(ours.logits_NL, wanted.logits_NL, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(ours.loss, wanted.loss, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(ours.gradient_norm, wanted.gradient_norm, rtol=2e-2, atol=2e-3)
        assert ours.clipped == wanted.clipped
        assert compiled.num_keys == other.num_keys
    tensors = compiled.dense_tensors() | compiled.served_tensors()
    for name, tensor in (other.dense_tensors() | other.served_tensors()).items():
        np.testing.assert_allclose(tensors[name].numpy(), tensor.numpy(), rtol=5e-3, atol=5e-3, err_msg=name)


def test_a_step_whose_gradients_are_not_finite_leaves_the_net_as_it_was():
    learner, batch = make_learner(SCHEMA, wide=False), make_batch(0, 8)
    learner.step(batch)
    before = {name: tensor.clone() for name, tensor in learner.dense_tensors().items()}
    batch.weights_N[3] = np.inf
    report = learner.step(batch)
    assert report.skipped
    assert all(bool((tensor == before[name]).all()) for name, tensor in learner.dense_tensors().items())


def test_rows_that_are_pooled_by_their_greatest_are_learned_by_autograd():
    learner = make_learner(GREATEST, wide=False)
    assert learner.compiled is None
    assert learner.autograd_reason == 'lists are pooled by "max"'
    learner.step(make_batch(0, 8))
