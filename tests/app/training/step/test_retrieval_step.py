import numpy as np
import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.device import TrainDevice
from springtide.app.training.step.learner import Learner
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide.stream.columns import Batch
from springtide_client.features import Features
from springtide_client.schema import Schema
from tests.support.batches import batch_of
from tests.support.gpu_emulation.transfer_stream import EmulatedTransferStream

SCHEMA = Schema(labels=("click",), categorical=("user_id", "item_id"))
TABLE = TableConfig(dim=8, device_bytes="8MiB")
NUM_ITEMS = 40


def make_learner(device: TrainDevice | None = None, table: EmbeddingTable | None = None) -> Learner:
    table = table or EmbeddingTable(with_adagrad_eps(TABLE), seed=0, tracked=False)
    options = {"item": ["item_id"], "hidden": [16], "dim": 8, "buckets": 256}
    net = build_model(ModelConfig(name="two_tower", options=options), ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    return Learner(net, table, TrainConfig(bfloat16=False), SCHEMA, device=device)


def make_batch(number: int, num: int = 256) -> Batch:
    """Users of group g click items of group g only; items come as often as 1 / (1 + rank)."""
    draw = np.random.default_rng(number)
    shares = 1 / (1 + np.arange(NUM_ITEMS))
    users, items = draw.integers(0, 100, num), draw.choice(NUM_ITEMS, num, p=shares / shares.sum())
    features = Features(np.stack([users, items], axis=1), (), np.zeros((num, 0), np.float32))
    return batch_of(features, users % 4 == items % 4, number + 1)


def test_towers_learn_which_items_a_user_clicks():
    learner = make_learner()
    losses = [learner.step(make_batch(number)).loss for number in range(60)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    report = learner.step(make_batch(60))
    scores, is_click = report.logits_NL[:, 0], report.labels_NL[:, 0] == 1
    assert (scores[is_click][:, None] > scores[~is_click]).mean() > 0.9


def test_the_same_batches_give_the_same_bits_and_a_restored_learner_continues():
    whole, first = make_learner(), make_learner()
    second = make_learner(table=first.table)
    for number in range(4):
        whole.step(make_batch(number))
    for number in range(2):
        first.step(make_batch(number))
    state = {name: tensor.numpy().copy() for name, tensor in first.state_tensors().items()}
    second.restore(first.dense_arrays(), state)
    for number in range(2, 4):
        second.step(make_batch(number))
    for name, array in whole.dense_arrays().items():
        np.testing.assert_array_equal(array, second.dense_arrays()[name])


def test_a_device_learns_what_the_host_learns():
    on_host = make_learner()
    on_device = make_learner(TrainDevice(torch.device("cpu"), EmulatedTransferStream(run_inline=True)))
    for number in range(4):
        batch = make_batch(number)
        if number == 2:
            batch.weights_N[3] = np.inf  # its gradients are not finite: skipped
        reports = on_host.step(batch), on_device.step(batch)
        assert reports[0].skipped == reports[1].skipped == (number == 2)
        np.testing.assert_allclose(reports[0].logits_NL, reports[1].logits_NL, rtol=1e-5, atol=1e-5)
    for name, array in on_host.dense_arrays().items():
        np.testing.assert_allclose(on_device.dense_arrays()[name], array, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_not_finite_change_nothing_of_the_net():
    learner = make_learner()
    learner.step(make_batch(0))
    before = learner.dense_arrays()
    batch = make_batch(1)
    batch.weights_N[3] = np.inf
    assert learner.step(batch).skipped
    for name, array in learner.dense_arrays().items():
        np.testing.assert_array_equal(array, before[name])
    assert not learner.step(make_batch(2)).skipped


@pytest.mark.parametrize("label", [0.0, np.nan])
def test_a_batch_without_positive_samples_is_counted_but_teaches_nothing(label):
    learner = make_learner()
    batch = make_batch(0)
    batch.labels_NL[:] = label
    before = learner.dense_arrays()
    report = learner.step(batch)
    assert np.isnan(report.loss)
    assert not report.skipped
    after = learner.dense_arrays()
    np.testing.assert_array_equal(before["user.layers.0.weight"], after["user.layers.0.weight"])
    assert int(after["frequency.num_samples_1"][0]) == len(batch)
