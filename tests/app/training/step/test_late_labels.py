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
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.stream.columns import Batch
from springtide.stream.join_state import FIRST, LATE, OTHER_WINDOW, SETTLED
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.app.training.step.rank_learners import BUILDING, rows_of, union_of
from tests.support.thread_ranks import on_ranks

TABLE = TableConfig(dim=4, device_bytes="8MiB")
RULES = ("settle", "importance_weighted")


def make_learner(
    rule: str, *, wide: bool, model: str = "dlrm", table: TableConfig = TABLE, exchange: Exchange | None = None
) -> Learner:
    ops = backend("cpu")  # of this rank alone: they keep scratch

    def make(name, own, admission):
        return EmbeddingTable(with_adagrad_eps(own), seed=0, tracked=True, admission=admission, device=ops)

    tables = open_tables(with_wide_rows(table, SCHEMA, crosses=True) if wide else table, ops, make)
    config = ModelConfig(name=model, wide=wide)
    with BUILDING:
        net = build_model(config, ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    if wide:
        add_wide_part(net, config, SCHEMA)
    return Learner(net, tables, TrainConfig(threads=1), SCHEMA, losses=(LabelLoss(late=rule),), exchange=exchange)


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


def graded_parts(step: int) -> list[Batch]:
    """The batches of two ranks, of which one may have nothing, or first samples alone."""
    share = 0.3 + 0.1 * step
    whole = with_grades(make_batch(2 * step, 40), FIRST, SETTLED, LATE, OTHER_WINDOW, share=share)
    other = with_grades(make_batch(2 * step + 1, 30), FIRST, share=share)
    nothing = Batch.empty(SCHEMA)
    return [(whole, other), (nothing, whole), (other, nothing), (whole, nothing)][step % 4]


def union_of_graded(parts: list[Batch]) -> Batch:
    known = [part for part in parts if len(part)]
    columns = {name: np.concatenate([getattr(part, name) for part in known]) for name in ("grade_N", "shares_NL")}
    return dataclasses.replace(union_of(known), **columns)


@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("wide", [True, False], ids=["wide", "net"])
@pytest.mark.parametrize("rule", RULES)
def test_ranks_of_which_one_has_no_late_samples_learn_what_one_process_learns(rule, wide, lookahead):
    steps = [graded_parts(step) for step in range(8)]
    alone = make_learner(rule, wide=wide)
    expected = [alone.step(union_of_graded(parts)) for parts in steps]

    def work(exchange: Exchange):
        learner = make_learner(rule, wide=wide, exchange=exchange)
        own = [parts[exchange.rank] for parts in steps]
        following = [*own[1:], None] if lookahead else [None] * len(own)
        reports = [learner.step(batch, after) for batch, after in zip(own, following, strict=True)]
        learner.require_same_net()
        return learner, reports, own_counts_of(learner)

    results = on_ranks(2, work)
    for learner, reports, _ in results:
        for report, one in zip(reports, expected, strict=True):
            np.testing.assert_array_equal(report.labels_NL, one.labels_NL)
            assert report.num_scored == one.num_scored
            if not wide:  # whose samples have an order on each rank alone
                np.testing.assert_allclose(report.logits_NL, one.logits_NL, rtol=1e-4, atol=1e-5)
                assert report.loss == pytest.approx(one.loss, rel=1e-4)
        if wide:
            assert learner.wide.arrays.num_samples_1 == alone.wide.arrays.num_samples_1
            np.testing.assert_allclose(learner.wide.arrays.slot_totals_4, alone.wide.arrays.slot_totals_4)
            found, known = (one.wide.arrays.seen_statistics_3F[2] for one in (learner, alone))
            np.testing.assert_allclose(found, known)
            np.testing.assert_allclose(learner.wide.arrays.samples_L, alone.wide.arrays.samples_L, rtol=0.05)
        else:
            for name, array in alone.dense_arrays().items():
                np.testing.assert_allclose(learner.dense_arrays()[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    assert results[0][2] | results[1][2] == own_counts_of(alone)
    assert not results[0][2].keys() & results[1][2].keys()


def own_counts_of(learner: Learner) -> dict[tuple[int, int], int]:
    """How often each id was seen whose row is here; not bins of numbers, which each rank standardizes by itself."""
    return {key: row[2] for key, row in rows_of(learner).items() if key[0] in SCHEMA.feature_numbers}


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


def test_keys_of_which_one_counts_twice_and_one_not_at_all_each_learn_their_own_gradient():
    def values_after(occurrences: list[int] | None) -> tuple[np.ndarray, list[int]]:
        table = make_learner("settle", wide=False).table.tables[""]
        ids_K = np.array([11, 12, 13])
        unique = table.unique(np.zeros(3, np.uint16), ids_K, np.zeros(3, np.int64))
        if occurrences is not None:  # as ranks request them: the sum is that of the keys
            unique = unique._replace(occurrences_U=np.array(occurrences))
        lookup = table.lookup_unique(unique, num_occurrences=None if occurrences is None else 3)
        table.update(lookup, np.arange(12, dtype=np.float32).reshape(3, 4))
        again = table.lookup_unique(unique)
        columns = table.read_rows(again)
        again.release()
        return columns.values_ND, columns.counts_N.tolist()

    expected, counts = values_after(None)
    assert counts == [1, 1, 1]
    found, counts = values_after([2, 0, 1])
    assert counts == [2, 0, 1]
    np.testing.assert_array_equal(found, expected)
