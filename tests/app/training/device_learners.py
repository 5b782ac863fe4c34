"""Learners on a device or on the host, the batches that they learn, and the comparison of what they learned."""

import dataclasses

import numpy as np

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.device import TrainDevice
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.learning_step import StepReport
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide_client.schema import Schema
from tests.app.training.random_clicks import SCHEMA, make_batch

TABLE = TableConfig(dim=4, device_bytes="8MiB")
BATCH_SIZE = 32


def learner_on(
    place: TrainDevice | None, *, name: str = "dlrm", optimizer: str = "adam", schema: Schema = SCHEMA
) -> Learner:
    rows_on = "cpu" if place is None else place.table
    table = EmbeddingTable(with_adagrad_eps(TABLE), seed=0, tracked=False, device=rows_on)
    net = build_model(ModelConfig(name=name), ModelSpec.of(schema, TABLE.dim), seed=0)
    config = TrainConfig(batch_size=BATCH_SIZE, optimizer={"name": optimizer, "lr": 0.01})
    return by_autograd(Learner(net, table, config, schema, device=place))


def by_autograd(learner: Learner) -> Learner:
    """As on a device: the sums of compiled nets differ in their last bits."""
    learner.compiled = None
    return learner


def learned(learner: Learner, batches: list) -> list[StepReport]:
    """Learn each batch with the next one prefetched, and read its report one step later."""
    reports, late = [], None
    for batch, next_batch in zip(batches, [*batches[1:], None], strict=True):
        before, late = late, learner.start_step(batch, next_batch)
        if before is not None:
            reports.append(before())
    return [*reports, late()]


def state_arrays(learner: Learner) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in learner.state_tensors().items()}


def assert_same(one: Learner, other: Learner, **tolerance: float) -> None:
    for arrays in (Learner.dense_arrays, state_arrays):
        mine, theirs = arrays(one), arrays(other)
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            np.testing.assert_allclose(array, theirs[name], **{"rtol": 0, "atol": 0} | tolerance)


BATCHES = [make_batch(number, samples) for number, samples in enumerate([32, 32, 32, 9, 32, 0, 32, 1])]
# an overflow in the middle: the net must stay as it was, and go on
BROKEN = [*BATCHES[:3], dataclasses.replace(make_batch(3), weights_N=np.full(32, 3e38, np.float32)), *BATCHES[4:]]
