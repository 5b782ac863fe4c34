"""The learner minimizes the loss that is set, with and without the wide part, on the host and on a device."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.losses.loss import Loss, add_task_weights
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.learning_step import LearningStep, OffsetObjective, StepColumns
from springtide.app.training.step.wide_step import WideScores
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide_client.model.inputs import ModelInputs
from springtide_client.wide.layout import wide_width
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.support.gpu_emulation.transfer_stream import emulated_device

TWO_LABELS = dataclasses.replace(SCHEMA, labels=("click", "order"))
LOSSES = {
    "focal": LabelLoss(name="focal"),
    "pairwise in groups": LabelLoss(name="pairwise", group=0),
    "listwise": LabelLoss(name="listwise"),
    "weight": LabelLoss(weight=3.0),
}


def make_learner(*losses: LabelLoss, wide: bool, uncertainty: bool = False, device=None, **train) -> Learner:
    settings = TableConfig(dim=4, device_bytes="8MiB", wide_width=wide_width(2) if wide else 0)
    table = EmbeddingTable(
        with_adagrad_eps(settings), seed=0, tracked=False, device="cpu" if device is None else device.table
    )
    config = ModelConfig(name="dlrm", wide=wide, crosses=0)
    net = build_model(config, ModelSpec.of(TWO_LABELS, 4), seed=0)
    add_wide_part(net, config, TWO_LABELS)
    if uncertainty:
        add_task_weights(net, 2)
    train = {"optimizer": {"name": "sgd", "lr": 0.01}} | train
    return Learner(net, table, TrainConfig(**train), TWO_LABELS, device=device, losses=losses)


def batch_of(number: int, samples: int = 32):
    return make_batch(number, samples, schema=TWO_LABELS)


@pytest.mark.parametrize("uncertainty", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_device_learns_what_the_host_learns(name, uncertainty) -> None:
    host, late = (
        make_learner(LOSSES[name], LabelLoss(), wide=False, uncertainty=uncertainty, device=device)
        for device in (None, emulated_device(run_inline=True))
    )
    for number in range(3):
        one, other = host.step(batch_of(number)), late.step(batch_of(number))
        np.testing.assert_allclose(one.logits_NL, other.logits_NL, rtol=1e-5, atol=1e-6)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
    for key, array in host.dense_arrays().items():
        np.testing.assert_allclose(array, late.dense_arrays()[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_the_net_learns_its_loss_of_the_final_score_to_which_the_wide_part_is_constant() -> None:
    """A linear net of the dense numbers, and a wide part that adds 0.7 and claims the logistic loss's errors."""
    draw = torch.Generator().manual_seed(0)
    dense_NF = torch.randn(9, 3, generator=draw)
    labels_NL, weights_N = (torch.rand(9, 2, generator=draw) < 0.5).float(), torch.rand(9, generator=draw)
    labels_NL[4, 1] = torch.nan
    groups_NG = torch.randint(0, 3, (9, 1), generator=draw)

    class Linear(nn.Linear):
        def forward(self, categorical, pooled, sequence, length, dense):
            return super().forward(dense)

    nothing = torch.zeros(9, 0, 4)
    inputs = ModelInputs(nothing, nothing, torch.zeros(9, 0, 1, 4), torch.zeros(9, 0, dtype=torch.int64), dense_NF)
    net, plain = Linear(3, 2), Linear(3, 2)
    plain.load_state_dict(net.state_dict())
    losses = (LabelLoss(name="pairwise", group=1, weight=2.0), LabelLoss(weight=0.5))

    def step(net_NL):
        final_NL = net_NL + np.float32(0.7)
        errors_NL = weights_N.numpy()[:, None] * (1 / (1 + np.exp(-final_NL)) - np.nan_to_num(labels_NL.numpy()))
        errors_NL[np.isnan(labels_NL.numpy())] = 0
        return WideScores(final_NL, errors_NL.astype(np.float32), final_NL)

    learn = LearningStep(net, NetUpdate(net, TrainConfig(optimizer={"name": "sgd", "lr": 1.0})))
    columns = StepColumns(inputs, labels_NL, weights_N, groups_NG, offset_step=step)
    outcome = learn(OffsetObjective(net, Loss(losses, net)), columns, bfloat16=False)
    expected, _ = Loss(losses, plain)(plain(*inputs) + 0.7, labels_NL, weights_N, groups_NG)
    expected.backward()
    assert outcome.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, (theirs - theirs.grad).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_the_wide_part_learns_the_logistic_loss_whatever_the_nets_is(name) -> None:
    """One batch: the net gives 0 to all samples, so the wide part sees the same offset."""
    one, other = make_learner(LOSSES[name], LabelLoss(), wide=True), make_learner(wide=True)
    for learner in (one, other):
        learner.step(batch_of(0))
    mine, plain = one.dense_arrays(), other.dense_arrays()
    for key in mine:
        if key.startswith("wide."):
            np.testing.assert_array_equal(mine[key], plain[key], err_msg=key)
    assert any(not np.array_equal(mine[key], plain[key]) for key in mine if not key.startswith("wide."))


@pytest.mark.parametrize("wide", [False, True])
def test_learned_weights_of_labels_move(wide) -> None:
    learner = make_learner(wide=wide, uncertainty=True, optimizer={"name": "adam", "lr": 0.01})
    for number in range(2):
        learner.step(batch_of(number))
    moved = learner.dense_arrays()["task_weights.log_variances_L"]
    assert (moved > 0).all()  # a loss of 0.69 a sample is more than 1/2
    assert "optimizer.task_weights.log_variances_L.exp_avg" in learner.state_tensors()


VALUES = dataclasses.replace(SCHEMA, labels=("click", "seconds"), links={"seconds": "log1p"})
VALUE_LOSSES = (LabelLoss(), LabelLoss(name="msle"))


def batch_with_seconds(number: int, samples: int = 32):
    """The second label is a dwell time: long where the user likes to click; that of every fifth sample is masked."""
    batch = make_batch(number, samples, schema=VALUES)
    users = batch.features.categorical_NC[:, 0]
    seconds_N = np.exp(users % 5 + np.random.default_rng(number).normal(2, 0.3, samples)).astype(np.float32)
    seconds_N[::5] = np.nan
    return dataclasses.replace(batch, labels_NL=np.stack([batch.labels_NL[:, 0], seconds_N], axis=1))


def value_learner(*, wide: bool, device=None) -> Learner:
    settings = TableConfig(dim=4, device_bytes="8MiB", wide_width=wide_width(2) if wide else 0)
    table = EmbeddingTable(
        with_adagrad_eps(settings), seed=0, tracked=False, device="cpu" if device is None else device.table
    )
    config = ModelConfig(name="dlrm", wide=wide, crosses=0)
    net = build_model(config, ModelSpec.of(VALUES, 4), seed=0)
    add_wide_part(net, config, VALUES)
    return Learner(net, table, TrainConfig(), VALUES, device=device, losses=VALUE_LOSSES)


@pytest.mark.parametrize("wide", [False, True])
def test_a_dwell_time_is_learned_by_the_net_beside_a_click(wide) -> None:
    learner, errors = value_learner(wide=wide), []
    for number in range(30):
        batch = batch_with_seconds(number, 64)
        report = learner.step(batch)
        known = ~np.isnan(batch.labels_NL[:, 1])
        errors.append(np.mean((report.logits_NL[known, 1] - np.log1p(batch.labels_NL[known, 1])) ** 2))
    assert np.mean(errors[-5:]) < 1.2  # the variance is 2
    assert learner.skipped_steps == 0


def test_the_wide_part_learns_nothing_of_a_value_and_clicks_as_without_it() -> None:
    with_seconds, without = value_learner(wide=True), make_learner(wide=True)
    batch = batch_with_seconds(0)
    masked = dataclasses.replace(batch, labels_NL=np.stack([batch.labels_NL[:, 0], np.full(32, np.nan)], axis=1))
    with_seconds.step(batch)
    without.step(masked.__class__(**{**vars(masked), "labels_NL": masked.labels_NL.astype(np.float32)}))
    mine, plain = with_seconds.dense_arrays(), without.dense_arrays()
    for key in mine:
        if key.startswith("wide."):
            np.testing.assert_array_equal(mine[key], plain[key], err_msg=key)


def test_a_device_learns_a_value_as_the_host_does() -> None:
    host, late = value_learner(wide=False), value_learner(wide=False, device=emulated_device(run_inline=True))
    for number in range(3):
        batch = batch_with_seconds(number)
        np.testing.assert_allclose(host.step(batch).logits_NL, late.step(batch).logits_NL, rtol=1e-4, atol=1e-5)
