"""Several ranks learn what one process learns from all their batches."""

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
from springtide_client.features import Features, Ragged

from app.models.config import ModelConfig
from app.models.interface import ModelSpec
from app.models.registry import build_model
from app.models.wide.wide_part import add_wide_part
from app.training.bootstrap import with_wide_rows
from app.training.config import TrainConfig, with_adagrad_eps
from app.training.step.learner import Learner
from embeddings.collection.collection import open_tables, tables_by_name
from embeddings.config import TableConfig
from embeddings.policy.admission import AdmissionControl
from embeddings.sharding.exchange import Exchange
from embeddings.sharding.precision import Precision
from embeddings.table import EmbeddingTable
from kernels.backend import backend
from stream.columns import Batch
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.support.thread_ranks import on_ranks

BUILDING = threading.Lock()  # torch has one generator for all threads
TABLE = TableConfig(dim=4, device_bytes=8 << 20)
LENGTHS = (20, 0, 33)  # of the ranks' batches, from step to step another rank's


def make_learner(exchange: Exchange | None = None, precision: Precision | None = None, **train: Any) -> Learner:
    table = EmbeddingTable(with_adagrad_eps(TABLE), seed=0, tracked=True)
    with BUILDING:
        net = build_model(ModelConfig(name="dlrm"), ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    return Learner(net, table, TrainConfig(**train), SCHEMA, exchange=exchange, precision=precision)


def parts_of(step: int) -> list[Batch]:
    lengths = np.roll(LENGTHS, step)
    return [make_batch(10 * step + number, int(length)) for number, length in enumerate(lengths)]


def union_of(parts: list[Batch]) -> Batch:
    def joined_list(ragged: list[Ragged]) -> Ragged:
        lengths = np.concatenate([np.diff(one.offsets) for one in ragged])
        return Ragged(np.concatenate([one.ids_M for one in ragged]), np.concatenate([[0], np.cumsum(lengths)]))

    features = [part.features for part in parts]
    together = Features(
        np.concatenate([one.categorical_NC for one in features]),
        tuple(joined_list([one.lists[number] for one in features]) for number in range(len(SCHEMA.lists))),
        np.concatenate([one.dense_NF for one in features]),
    )
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels_NL", "weights_N", "event_ms_N", "record_ms_N")
    }
    return dataclasses.replace(parts[0], features=together, **columns)


def batch_of(step: int, rank: int, num_ranks: int) -> Batch:
    """The part of a rank: every `num_ranks`-th in a row."""
    parts = parts_of(step)
    bounds = np.linspace(0, len(parts), num_ranks + 1).round().astype(int)
    return union_of(parts[bounds[rank] : bounds[rank + 1]])


def rows_of(learner: Learner) -> dict[tuple[int, int], tuple[Any, ...]]:
    assert isinstance(learner.table, EmbeddingTable)
    delta = learner.table.take_delta()
    columns = delta.features, delta.ids, delta.values, delta.states, delta.counts, delta.last_seen
    return {(int(f), int(i)): tuple(rest) for f, i, *rest in zip(*columns, strict=True)}


def learn(learner: Learner, rank: int, num_ranks: int, steps: int = 6, lookahead: bool = True) -> list[Any]:
    reports = []
    batches = [batch_of(step, rank, num_ranks) for step in range(steps)]
    for step, batch in enumerate(batches):
        following = batches[step + 1] if lookahead and step + 1 < steps else None
        if step == 3 and rank == 0:
            following = None
        reports.append(learner.step(batch, following))
    return reports


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("train", [{}, {"clip_norm": 0.01, "lr_schedule": {"warmup_samples": 100, "rows": True}}])
def test_ranks_learn_what_one_process_learns(num_ranks: int, train: dict[str, Any]) -> None:
    alone = make_learner(**train)
    expected = [alone.step(union_of(parts_of(step))) for step in range(6)]

    def work(exchange: Exchange) -> Any:
        learner = make_learner(exchange, **train)
        reports = learn(learner, exchange.rank, num_ranks)
        learner.require_same_net()
        return learner, reports, rows_of(learner)

    results = on_ranks(num_ranks, work)
    known = rows_of(alone)
    rows: dict[tuple[int, int], tuple[Any, ...]] = {}
    for learner, reports, own in results:
        assert not rows.keys() & own.keys(), "two ranks have a row of this id"
        rows |= own
        assert (learner.steps, learner.num_samples) == (alone.steps, alone.num_samples)
        for report, one in zip(reports, expected, strict=True):
            np.testing.assert_array_equal(report.labels_NL, one.labels_NL)
            np.testing.assert_array_equal(report.weights_N, one.weights_N)
            np.testing.assert_allclose(report.logits_NL, one.logits_NL, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose((report.loss, report.gradient_norm), (one.loss, one.gradient_norm), rtol=1e-4)
            assert report.clipped == one.clipped
        for name, array in alone.dense_arrays().items():
            np.testing.assert_allclose(learner.dense_arrays()[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(learner.dense_arrays()[name], results[0][0].dense_arrays()[name])
    assert rows.keys() == known.keys()
    for key, (values, states, count, last_seen) in known.items():
        assert rows[key][2:] == (count, last_seen)
        np.testing.assert_allclose(rows[key][0], values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows[key][1], states, rtol=1e-4, atol=1e-5)


def make_wide_learner(exchange: Exchange | None = None, crosses: int = 64) -> Learner:
    def make(name: str, own: TableConfig, admission: AdmissionControl | None) -> EmbeddingTable:
        return EmbeddingTable(with_adagrad_eps(own), seed=0, tracked=True, admission=admission)

    table = open_tables(with_wide_rows(TABLE, SCHEMA, crosses=crosses > 0), backend("cpu"), make)
    config = ModelConfig(name="deepfm", wide=True, crosses=crosses)
    with BUILDING:
        net = build_model(config, ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    add_wide_part(net, config, SCHEMA)
    return Learner(net, table, TrainConfig(), SCHEMA, exchange=exchange)


def loss_of(reports: list[Any]) -> float:
    return float(np.mean([report.loss for report in reports]))


@pytest.mark.parametrize("crosses", [64, 3, 0])
def test_ranks_learn_the_wide_part_nearly_as_one_process(crosses: int) -> None:
    parts = [[make_batch(2 * step + rank, 200 if step % 5 else 200 * rank) for rank in range(2)] for step in range(12)]
    alone = make_wide_learner(crosses=crosses)
    expected = [alone.step(union_of(part)) for part in parts]

    def work(exchange: Exchange) -> Any:
        learner = make_wide_learner(exchange, crosses)
        batches = [part[exchange.rank] for part in parts]
        assert not learner.needs_checkpoint(batches[0])
        reports = [
            learner.step(batch, following) for batch, following in zip(batches, [*batches[1:], None], strict=True)
        ]
        learner.require_same_net()
        rows = {name: table.take_delta() for name, table in tables_by_name(learner.table).items()}
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
        assert len(delta) > 10
        assert len(other_rows[name]) > 10
        keys = [{*zip(one.features, one.ids, strict=True)} for one in (delta, other_rows[name])]
        assert not keys[0] & keys[1], "two ranks have a row of this id"
