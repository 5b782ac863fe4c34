"""Samples that correct what was learned: how they are weighed, and that their ids are not counted again."""

import dataclasses

import msgspec
import numpy as np
import pytest

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.collection import open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.stream.columns import Batch
from springtide.stream.join_state import FIRST, LATE, OTHER_WINDOW, SETTLED
from tests.app.training.random_clicks import SCHEMA, make_batch

TABLE = TableConfig(dim=4, device_bytes="8MiB")
RULES = ("settle", "importance_weighted")


def make_learner(rule: str, *, wide: bool, model: str = "dlrm", table: TableConfig = TABLE) -> Learner:
    def make(name, own, admission):
        return EmbeddingTable(with_adagrad_eps(own), seed=0, tracked=False, admission=admission)

    tables = open_tables(with_wide_rows(table, SCHEMA, crosses=True) if wide else table, backend("cpu"), make)
    config = ModelConfig(name=model, wide=wide)
    net = build_model(config, ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    if wide:
        add_wide_part(net, config, SCHEMA)
    return Learner(net, tables, TrainConfig(threads=1), SCHEMA, losses=(LabelLoss(late=rule),))


def with_grades(batch: Batch, *grades: int, share: float) -> Batch:
    """A batch whose samples have these grades in turn, and of whose positives a share comes within the window."""
    num = len(batch)
    return dataclasses.replace(
        batch,
        grade_N=np.resize(np.array(grades, np.uint8), num),
        shares_NL=np.full((num, 1), share, np.float32),
    )


def part_of(batch: Batch, n: int) -> Batch:
    own = slice(n, n + 1)
    return dataclasses.replace(
        batch,
        features=batch.features.slice(n, n + 1),
        labels_NL=batch.labels_NL[own],
        weights_N=batch.weights_N[own],
        event_ms_N=batch.event_ms_N[own],
        record_ms_N=batch.record_ms_N[own],
    )


def weight_of(rule: str, y: float, p: float, share: float) -> float:
    """The weights as STREAM's rules say them."""
    if rule == "settle":
        return 1 / (1 + share) if y else (1 - p) / (2 - p - p * share)
    return 1.0 if y else (1 - p) / (1 - p * share)


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "net"])
@pytest.mark.parametrize("rule", RULES)
def test_a_sample_counts_what_its_rule_says_by_the_prediction_before_the_step(rule, wide):
    learner, by_hand = (make_learner(name, wide=wide) for name in (rule, ""))
    for number in range(2):
        batch = make_batch(number, 25)
        for n in range(len(batch)):
            one, share = part_of(batch, n), 0.2 + 0.03 * n
            report = learner.step(with_grades(one, FIRST, share=share))
            p = 1 / (1 + np.exp(-float(report.logits_NL[0, 0])))
            weight = weight_of(rule, float(one.labels_NL[0, 0]), p, share) * one.weights_N
            expected = by_hand.step(dataclasses.replace(one, weights_N=weight.astype(np.float32)))
            np.testing.assert_allclose(report.logits_NL, expected.logits_NL, rtol=1e-4, atol=1e-5)
            assert report.weights_N == one.weights_N  # scores weigh by what the user says
    for name, array in learner.dense_arrays().items():
        np.testing.assert_allclose(array, by_hand.dense_arrays()[name], rtol=2e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_a_large_batch_learns_by_autograd_what_a_compiled_one_learns(rule):
    compiled, autograd = (make_learner(rule, wide=False) for _ in range(2))
    autograd.compiled = None
    for number in range(3):
        batch = with_grades(make_batch(number, 40), FIRST, share=0.6)
        reports = [learner.step(batch) for learner in (compiled, autograd)]
        np.testing.assert_allclose(reports[0].logits_NL, reports[1].logits_NL, rtol=1e-4, atol=1e-5)
        assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-4)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_weights_of_one_impression_add_up_to_one(share):
    p = 0.37
    settled = p * share * weight_of("settle", 1, p, share) + (1 - p * share) * weight_of("settle", 0, p, share)
    settled += p * weight_of("settle", 1, p, share) + (1 - p) * weight_of("settle", 0, p, share)
    weighted = p * share + (1 - p * share) * weight_of("importance_weighted", 0, p, share) + p * (1 - share)
    assert settled == pytest.approx(1)
    assert weighted == pytest.approx(1)


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "net"])
def test_only_the_first_sample_of_an_impression_counts_its_ids(wide):
    learner, first_alone = (make_learner("settle", wide=wide) for _ in range(2))
    batch = make_batch(1, 60)
    counted = with_grades(batch, FIRST, OTHER_WINDOW, LATE, SETTLED, share=0.5)
    learner.step(counted)
    rows = np.flatnonzero(counted.is_counted_N)
    own = dataclasses.replace(
        batch,
        features=batch.features.take(rows),
        labels_NL=batch.labels_NL[rows],
        weights_N=batch.weights_N[rows],
        event_ms_N=batch.event_ms_N[rows],
        record_ms_N=batch.record_ms_N[rows],
    )
    first_alone.step(own)
    found, expected = (counts_of(one) for one in (learner, first_alone))
    assert found == expected
    if wide:
        assert learner.wide.arrays.num_samples_1[0] == len(rows)
        for one in (learner, first_alone):
            assert one.wide.arrays.seen_statistics_3F[2].sum() > 0
        np.testing.assert_array_equal(
            learner.wide.arrays.seen_statistics_3F[2], first_alone.wide.arrays.seen_statistics_3F[2]
        )


def counts_of(learner: Learner) -> dict[tuple[int, int], int]:
    """How often each id was seen."""
    features, ids = np.repeat(np.arange(3, dtype=np.uint16), 2000), np.tile(np.arange(2000), 3)
    lookup = learner.table.rows.lookup(features, ids, np.zeros(len(ids), np.int64))
    counts_U = learner.table.rows.read_rows(lookup).counts_N
    lookup.release()
    keys = zip(lookup.unique.features_U.tolist(), lookup.unique.ids_U.tolist(), strict=True)
    return {key: int(count) for key, count in zip(keys, counts_U, strict=True) if count}


def test_an_id_is_not_admitted_for_being_learned_again():
    table = msgspec.structs.replace(TABLE, admission={"min_count": 2, "sketch_bytes": 64 * 64})
    learner = make_learner("settle", wide=False, table=table)
    batch = part_of(make_batch(3, 4), 0)
    for grade in (FIRST, SETTLED, OTHER_WINDOW):
        learner.step(with_grades(batch, grade, share=0.5))
        assert status_of(learner, batch) == 2  # seen, and without a row of its own
    learner.step(with_grades(batch, FIRST, share=0.5))
    learner.step(with_grades(batch, SETTLED, share=0.5))
    assert status_of(learner, batch) == 0


def status_of(learner: Learner, batch: Batch) -> int:
    ids = batch.features.categorical_NC[:1, 0]
    return int(learner.table.find(np.zeros(1, np.uint16), ids)[1][0])
