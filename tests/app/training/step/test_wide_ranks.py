"""Several ranks learn the wide part nearly as one process does."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.config import TrainConfig
from springtide.app.training.step.learner import Learner
from springtide.embeddings.sharding.exchange import Exchange
from springtide.stream.columns import Batch
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.app.training.step.rank_learners import (
    BUILDING,
    TABLE,
    loss_of,
    open_table,
    union_of,
)
from tests.support.thread_ranks import on_ranks


def make_wide_learner(
    exchange: Exchange | None = None, crosses: int = 64, schema: Schema = SCHEMA, model: str = "deepfm"
) -> Learner:
    table = open_table(with_wide_rows(TABLE, schema, crosses=crosses > 0))
    config = ModelConfig(name=model, wide=True, crosses=crosses)
    with BUILDING:
        net = build_model(config, ModelSpec.of(schema, TABLE.dim), seed=0)
    add_wide_part(net, config, schema)
    return Learner(net, table, TrainConfig(), schema, exchange=exchange)


@pytest.mark.parametrize(("crosses", "weighted"), [(64, ()), (3, ()), (0, ()), (64, ("genres",))])
def test_ranks_learn_the_wide_part_nearly_as_one_process(crosses: int, weighted: tuple[str, ...]) -> None:
    schema = dataclasses.replace(SCHEMA, weighted=weighted)
    parts = [
        [make_batch(2 * step + rank, 200 if step % 5 else 200 * rank, schema) for rank in range(2)]
        for step in range(12)
    ]
    alone = make_wide_learner(crosses=crosses, schema=schema)
    expected = [alone.step(union_of(part)) for part in parts]

    def work(exchange: Exchange) -> Any:
        learner = make_wide_learner(exchange, crosses, schema)
        batches = [part[exchange.rank] for part in parts]
        assert not learner.count_keys(batches[0]).need_checkpoint
        reports = [
            learner.step(batch, following) for batch, following in zip(batches, [*batches[1:], None], strict=True)
        ]
        learner.require_same_net()
        rows = {name: table.take_delta() for name, table in learner.table.tables.items()}
        return reports, learner.dense_arrays(), rows

    (reports, arrays, rows), (_, _, other_rows) = on_ranks(2, work)
    assert abs(loss_of(reports[4:]) - loss_of(expected[4:])) < 0.03
    known = alone.dense_arrays()
    for name in ("num_samples_1", "clicks_L", "samples_L", "seen_statistics_3F"):
        np.testing.assert_allclose(arrays[f"wide.{name}"], known[f"wide.{name}"], rtol=0.2, err_msg=name)
    np.testing.assert_allclose(arrays["wide.number_statistics_3D"], known["wide.number_statistics_3D"], rtol=1e-9)
    if crosses == 3:
        assert arrays["wide.pair_is_live_P"].sum() == 3
    for name, delta in rows.items():
        assert len(delta.rows) > 10
        assert len(other_rows[name].rows) > 10
        keys = [{*zip(one.rows.feature, one.rows.id, strict=True)} for one in (delta, other_rows[name])]
        assert not keys[0] & keys[1], "two ranks have a row of this id"


BIASED = dataclasses.replace(SCHEMA, bias=("position", "layout"))


def presented(batch: Batch, seed: int) -> Batch:
    """Clicks that depend on the place too, of which a tenth is not known."""
    random = np.random.default_rng([seed, 1])
    bias_NB = random.integers(0, 3, (len(batch), 2))
    is_seen_N = random.random(len(batch)) < np.array([1.0, 0.5, 0.1])[bias_NB[:, 0]]
    bias_NB[random.random(len(batch)) < 0.1] = MISSING_ID
    labels_NL = batch.labels_NL * is_seen_N[:, None]
    return dataclasses.replace(
        batch, labels_NL=labels_NL, features=dataclasses.replace(batch.features, bias_NB=bias_NB)
    )


def test_ranks_learn_bias_fields_nearly_as_one_process() -> None:
    parts = [
        [presented(make_batch(2 * step + rank, 200 if step % 5 else 200 * rank), 2 * step + rank) for rank in range(2)]
        for step in range(12)
    ]
    alone = make_wide_learner(schema=BIASED)
    expected = [alone.step(union_of(part)) for part in parts]

    def work(exchange: Exchange) -> Any:
        learner = make_wide_learner(exchange, schema=BIASED)
        batches = [part[exchange.rank] for part in parts]
        reports = [
            learner.step(batch, following) for batch, following in zip(batches, [*batches[1:], None], strict=True)
        ]
        learner.require_same_net()
        return reports, learner.table.tables[""].take_delta().rows

    (reports, rows), (_, other_rows) = on_ranks(2, work)
    assert abs(loss_of(reports[4:]) - loss_of(expected[4:])) < 0.03
    number, weights = BIASED.bias_number("position"), {}
    for block in (rows, other_rows, alone.table.tables[""].take_delta().rows):
        own = block.feature == number
        weights |= {
            (block is rows or block is other_rows, int(row_id)): state
            for row_id, state in zip(block.id[own], block.state[own, 1], strict=True)
        }
    of_ranks, of_one = (np.array([weights[which, place] for place in (0, 1, 2, MISSING_ID)]) for which in (True, False))
    assert of_one[0] - of_one[2] > 1
    np.testing.assert_allclose(of_ranks, of_one, atol=0.35)


def test_many_ranks_that_correct_the_same_error_do_not_overshoot() -> None:
    """Every id is in half of all samples: each rank alone corrects most of an error within a step."""
    schema = Schema(labels=("click",), categorical=tuple(f"field{number}" for number in range(12)))

    def clicks(seed: int) -> Batch:
        random = np.random.default_rng(seed)
        ids_NC = random.integers(0, 2, (1024, 12))
        logits_N = (ids_NC - 0.5) @ np.linspace(-1, 1, 12)
        labels_NL = (random.random((1024, 1)) < 1 / (1 + np.exp(-logits_N[:, None]))).astype(np.float32)
        features, ones_N = Features(ids_NC, (), np.zeros((1024, 0), np.float32)), np.ones(1024, np.float32)
        batch = make_batch(seed, 1024)
        return dataclasses.replace(
            batch, features=features, labels_NL=labels_NL, weights_N=ones_N, id_strings=[], dead_letters=()
        )

    def work(exchange: Exchange) -> list[float]:
        learner, losses = make_wide_learner(exchange, 0, schema, "logistic"), []
        assert learner.wide is not None
        for step in range(7):
            losses.append(learner.step(clicks(8 * step + exchange.rank)).loss)
            arrays = learner.wide.arrays
            arrays.loss_difference_L[:], arrays.mixture_L[:] = 100, 1  # the plain learner would hide it
        return losses

    losses = on_ranks(8, work)[0]
    assert max(losses[4:]) < 0.59
