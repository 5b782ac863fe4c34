import dataclasses

import msgspec
import numpy as np
import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.training.config import ADAGRAD_EPS, TrainConfig, with_adagrad_eps
from springtide.app.training.step.batch_keys import BatchKeys, KeyPreparer, assemble_tensors
from springtide.app.training.step.learner import Learner
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.torch_api.autograd import embed_slices
from springtide.kernels.backend import backend
from springtide.stream.columns import Batch
from springtide_client.features import Features, Ragged
from springtide_client.model.inputs import ModelInputs, assemble
from springtide_client.schema import Schema
from tests.app.training.random_clicks import SCHEMA, make_batch

TABLE = TableConfig(dim=4, device_bytes="8MiB")


def make_learner(model: str = "dlrm", schema=SCHEMA, **train) -> Learner:
    table = EmbeddingTable(with_adagrad_eps(TABLE), seed=0, tracked=False)
    net = build_model(ModelConfig(name=model), ModelSpec.of(schema, TABLE.dim), seed=0)
    return Learner(net, table, TrainConfig(**train), schema)


def auc(labels, predictions) -> float:
    positives, negatives = predictions[labels == 1], predictions[labels == 0]
    return float((positives[:, None] > negatives[None, :]).mean())


def keys_of(schema: Schema, features: Features) -> BatchKeys:
    num = len(features)
    columns = np.zeros((num, 1), np.float32), np.ones(num, np.float32), np.arange(num), np.zeros(num, np.int64)
    batch = Batch(features, *columns, positions={})
    return KeyPreparer(schema, backend("cpu"), None).prepare(batch)


def embedded(schema: Schema, features: Features) -> tuple[ModelInputs, np.ndarray]:
    """The inputs of a batch by a real table, and the rows of its keys."""
    table = EmbeddingTable(TABLE, seed=0, tracked=False)
    keys = keys_of(schema, features)
    lookup = table.lookup(keys.features_K, keys.ids_K, keys.event_ms_K)
    inputs = assemble_tensors(keys, schema, embed_slices(table, lookup, keys.slices))
    return inputs, table.find(keys.features_K, keys.ids_K)[0]


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
@pytest.mark.parametrize("number", range(3))
def test_the_tables_assembly_equals_the_reference(number, pooling):
    schema = dataclasses.replace(SCHEMA, pooling={"genres": pooling})
    features = make_batch(number, 17).features
    inputs, rows_KD = embedded(schema, features)
    for mine, reference in zip(inputs, assemble(schema, features, rows_KD), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_pooled_rows_get_their_part_of_the_gradient(pooling):
    """One list [3, 4, 3] and an empty one, sgd with lr 1, a loss that is the sum of the pooled vectors."""
    schema = Schema(labels=("click",), multi_value=("genres",), pooling={"genres": pooling})
    ragged = Ragged(np.array([3, 4, 3]), np.array([0, 3, 3]))
    features = Features(np.zeros((2, 0), np.int64), (ragged,), np.zeros((2, 0), np.float32))
    table = EmbeddingTable(msgspec.structs.replace(TABLE, optimizer={"name": "sgd", "lr": 1.0}), seed=0, tracked=False)
    keys = keys_of(schema, features)
    lookup = table.lookup(keys.features_K, keys.ids_K, keys.event_ms_K)
    before = table.find(keys.features_K, keys.ids_K)[0][:2]
    pooled = assemble_tensors(keys, schema, embed_slices(table, lookup, keys.slices)).pooled
    assert not pooled[1].any()
    pooled.sum().backward()
    moved = before - table.find(keys.features_K, keys.ids_K)[0][:2]
    wins = before[0] > before[1]
    expected = {"mean": [[2 / 3] * 4, [1 / 3] * 4], "sum": [[2.0] * 4, [1.0] * 4], "max": [wins, ~wins]}[pooling]
    np.testing.assert_allclose(moved, np.array(expected, np.float32), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("weights", [[0.8, 0.2, -0.5, 3], [0, 0, 0, 1], [1000, -1000, 1e-30, 0], [1e-30, 0, 0, 2]])
def test_rows_are_pooled_by_weights_and_get_the_gradients_of_torch(pooling, weights):
    """Lists [3, 4, 5], none and [3], sgd with lr 1, a loss of random factors of the pooled vectors."""
    schema = Schema(labels=("click",), multi_value=("genres",), pooling={"genres": pooling}, weighted=("genres",))
    weights_M = np.array(weights, np.float32)
    ragged = Ragged(np.array([3, 4, 5, 3]), np.array([0, 3, 3, 4]), weights_M)
    features = Features(np.zeros((3, 0), np.int64), (ragged,), np.zeros((3, 0), np.float32))
    table = EmbeddingTable(msgspec.structs.replace(TABLE, optimizer={"name": "sgd", "lr": 1.0}), seed=0, tracked=False)
    keys = keys_of(schema, features)
    lookup = table.lookup(keys.features_K, keys.ids_K, keys.event_ms_K)
    before = table.find(keys.features_K, keys.ids_K)[0][:3]
    mine = assemble_tensors(keys, schema, embed_slices(table, lookup, keys.slices)).pooled[:, 0]
    rows = torch.tensor(before, requires_grad=True)
    lists = [[(rows[i], w) for i, w in zip(range(3), weights_M.tolist(), strict=False)], [], [(rows[0], weights[3])]]
    sums = [sum((w * row for row, w in one), torch.zeros(4)) for one in lists]
    sizes = [max(sum(abs(w) for _, w in one), 1e-12) if pooling == "mean" else 1.0 for one in lists]
    pooled = torch.stack([each / size for each, size in zip(sums, sizes, strict=True)])
    np.testing.assert_allclose(mine.detach().numpy(), pooled.detach().numpy(), rtol=1e-5, atol=1e-7)
    reference = assemble(schema, features, table.find(keys.features_K, keys.ids_K)[0]).pooled[:, 0]
    np.testing.assert_allclose(reference, mine.detach().numpy(), rtol=1e-6, atol=1e-7)
    factors = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)) / 1000
    (mine * factors).sum().backward()
    (pooled * factors).sum().backward()
    after = table.find(keys.features_K, keys.ids_K)[0][:3]
    np.testing.assert_allclose(after, before - rows.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_lists_that_are_all_empty_assemble_too():
    none = Ragged(np.zeros(0, np.int64), np.zeros(4, np.int64))
    features = Features(np.ones((3, 2), np.int64), (none, none), np.zeros((3, 2), np.float32))
    inputs, _ = embedded(SCHEMA, features)
    assert inputs.pooled.shape == (3, 1, 4)
    assert inputs.sequence.shape == (3, 1, 1, 4)
    assert not inputs.pooled.any()


def test_every_key_has_the_time_of_its_sample():
    batch = make_batch(0, 9)
    keys = make_learner().keys.prepare(batch)
    times_K = keys.event_ms_K
    assert len(times_K) == len(keys.ids_K)
    np.testing.assert_array_equal(times_K[:18], np.repeat(batch.event_ms_N, 2))


@pytest.mark.parametrize("model", ["dlrm", "deepfm", "logistic"])
def test_each_model_learns(model):
    learner = make_learner(model)
    reports = [learner.step(make_batch(number)) for number in range(300)]
    labels = np.concatenate([report.labels_NL for report in reports[150:]]).ravel()
    predictions = 1 / (1 + np.exp(-np.concatenate([report.logits_NL for report in reports[150:]]).ravel()))
    assert auc(labels, predictions) > 0.78  # the best possible is about 0.83


def test_a_sample_is_scored_before_it_is_learned():
    learner = make_learner()
    batch = make_batch(1)
    keys = learner.keys.prepare(batch)
    lookup = learner.table.lookup(keys.features_K, keys.ids_K, keys.event_ms_K)
    inputs = assemble_tensors(keys, SCHEMA, embed_slices(learner.table, lookup, keys.slices))
    expected = learner.model(*inputs).detach().numpy()
    np.testing.assert_array_equal(learner.step(batch).logits_NL, expected)


def test_rows_do_not_depend_on_the_other_samples_of_their_batch():
    """The loss is a sum: one sample moves its rows as far in a batch of many strangers as alone."""
    batch = make_batch(3, 64)
    alone = dataclasses.replace(batch, weights_N=np.where(np.arange(64) == 5, 1, 0).astype(np.float32))
    moved = []
    for samples in (batch, alone):
        learner = make_learner("logistic")
        key = (np.array([0], np.uint16), samples.features.categorical_NC[5:6, 0])
        learner.step(samples)
        moved.append(learner.table.find(*key)[0])
    same_user = (batch.features.categorical_NC[:, 0] == batch.features.categorical_NC[5, 0]).sum()
    assert same_user > 1 or np.allclose(*moved, atol=1e-6)
    assert np.abs(moved[1]).max() > 0.01


def test_rows_follow_a_schedule_by_choice():
    """In the middle of a warm-up a row moves as with half the learning rate."""
    halved = [make_learner(lr_schedule={"warmup_samples": 64, "rows": rows}) for rows in (True, False)]
    plain = make_learner(optimizer={"lr": 0.0005})
    plain.table.set_lr(0.025)
    batch = make_batch(1)
    key = (np.zeros(32, np.uint16), batch.features.categorical_NC[:, 0])
    found = []
    for learner in (*halved, plain):
        learner.step(batch)
        found.append(learner.table.find(*key)[0])
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[1] != found[2]).any()
    arrays = [learner.dense_arrays() for learner in (*halved, plain)]
    for name, array in arrays[2].items():
        np.testing.assert_array_equal(arrays[0][name], array, err_msg=name)
        np.testing.assert_array_equal(arrays[1][name], array, err_msg=name)


def test_a_sample_without_weight_is_counted_and_updates_nothing():
    learner = make_learner()
    batch = dataclasses.replace(make_batch(1), weights_N=np.zeros(32, np.float32))
    before = {name: value.clone() for name, value in learner.model.named_parameters()}
    report = learner.step(batch)
    assert np.isnan(report.loss)
    assert all(torch.equal(value, before[name]) for name, value in learner.model.named_parameters())


def test_masked_labels_train_nothing():
    schema = dataclasses.replace(SCHEMA, labels=("click", "order"))
    learners = [make_learner(schema=schema) for _ in range(2)]
    batch = make_batch(1, schema=schema)
    labels = batch.labels_NL.copy()
    labels[:, 1] = np.nan
    for learner, other in zip(learners, (0.0, 1.0), strict=True):
        filled = labels.copy()
        filled[0] = np.nan  # a sample without any label
        learner.step(dataclasses.replace(batch, labels_NL=filled))
        filled[0, 0] = other
    arrays = [learner.dense_arrays() for learner in learners]
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name])
    assert arrays[0]["calibration.count_L"][1] == 4.0


def test_an_overflowing_step_is_skipped_and_the_net_stays_finite():
    learner = make_learner()
    learner.step(make_batch(0))
    batch = make_batch(1)
    learner.step(dataclasses.replace(batch, weights_N=np.full(32, 3e38, np.float32)))
    assert learner.skipped_steps == 1
    assert np.isfinite(learner.step(make_batch(2)).logits_NL).all()


def test_a_batch_without_samples_runs_no_step():
    learner = make_learner()
    learner.step(make_batch(0, 0))
    assert learner.steps == 0


def test_bfloat16_learns_nearly_the_same_and_small_batches_stay_float32():
    plain, coarse = make_learner(bfloat16=False), make_learner(bfloat16=True)
    small = make_batch(0, 32)
    np.testing.assert_array_equal(plain.step(small).logits_NL, coarse.step(small).logits_NL)
    losses = [[learner.step(make_batch(n, 512)).loss for n in range(30)] for learner in (plain, coarse)]
    assert losses[1] != losses[0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)


def test_eps_of_the_configuration_wins_over_the_learners():
    assert with_adagrad_eps(TABLE).optimizer["eps"] == ADAGRAD_EPS
    own = TableConfig(optimizer={"name": "rowwise-adagrad", "lr": 0.1, "eps": 1e-8})
    assert with_adagrad_eps(own) is own


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"device": "cuda:9"}, "device"),
        ({"optimizer": {"name": "adma"}}, '"adam", "adamw", "lion", "sgd"'),
        ({"optimizer": {"name": "adam", "rate": 1}}, "'rate'"),
        ({"bfloat16": "sometimes"}, "bfloat16"),
    ],
)
def test_a_wrong_setting_is_rejected_by_name(settings, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(**settings)
