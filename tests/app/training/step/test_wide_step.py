import dataclasses
import threading
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.step import wide_step
from springtide.app.training.step.learner import Learner
from springtide.embeddings.collection import open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.errors import SpillError
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.stream.columns import Batch
from springtide_client.features import Features, Ragged
from springtide_client.keys import CROSSES, MISSING_ID
from springtide_client.schema import Schema
from springtide_client.wide.layout import born_column, wide_width
from springtide_client.wide.slots import cross_ids, row_hashes
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.support.waiting import DEADLINE_SECONDS

TABLE = TableConfig(dim=4, device_bytes="16MiB")


def make_learner(model="dlrm", schema=SCHEMA, optimizer=None, crosses=64, **train) -> Learner:
    settings = TABLE if optimizer is None else msgspec.structs.replace(TABLE, optimizer=optimizer)

    def make(name, own, admission):
        return EmbeddingTable(with_adagrad_eps(own), seed=0, tracked=False, admission=admission)

    table = open_tables(with_wide_rows(settings, schema, crosses=crosses > 0), backend("cpu"), make)
    config = ModelConfig(name=model, wide=True, crosses=crosses)
    net = build_model(config, ModelSpec.of(schema, TABLE.dim), seed=0)
    add_wide_part(net, config, schema)
    return Learner(net, table, TrainConfig(**train), schema)


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    own = slice(start, stop)
    return dataclasses.replace(
        batch,
        features=batch.features.slice(start, stop),
        labels_NL=batch.labels_NL[own],
        weights_N=batch.weights_N[own],
        event_ms_N=batch.event_ms_N[own],
        record_ms_N=batch.record_ms_N[own],
    )


def loss_of(reports) -> float:
    logits, labels, weights = (
        np.concatenate([getattr(r, name) for r in reports]) for name in ("logits_NL", "labels_NL", "weights_N")
    )
    losses = np.logaddexp(0, np.where(labels > 0.5, -logits, logits)).astype(float)
    return float(np.average(losses[:, 0], weights=weights))


def test_a_batch_teaches_as_much_as_its_samples_one_by_one():
    whole, single = (make_learner("logistic") for _ in range(2))
    for learner in (whole, single):
        learner.optimizer.step = lambda *_: None  # the net stays, so that the size of a batch changes nothing
    for number in range(3):
        batch = make_batch(number, 40)
        logits = whole.step(batch).logits_NL
        one_by_one = [single.step(part_of(batch, n, n + 1)).logits_NL for n in range(40)]
        np.testing.assert_array_equal(logits, np.concatenate(one_by_one))
    for name, array in whole.dense_arrays().items():
        if name.startswith("wide."):
            np.testing.assert_array_equal(array, single.dense_arrays()[name], err_msg=name)


NO_NUMBERS = dataclasses.replace(SCHEMA, dense=())  # they are standardized by what came before each sample
REQUESTS = np.array([1, 1, 1, 2, MISSING_ID, MISSING_ID, 3, 3, 1, 1, 4, 4, 4, 4, 4, 5])


@pytest.mark.parametrize("model", ["logistic", "dlrm", "din"])  # din: by autograd
@pytest.mark.parametrize("crosses", [64, 0])
def test_a_request_is_scored_before_any_of_its_samples_is_learned(model, crosses):
    by_request, plain = (make_learner(model, NO_NUMBERS, crosses=crosses, by_request=each) for each in (True, False))
    reported = []
    for number in range(3):
        batch = make_batch(number, len(REQUESTS), NO_NUMBERS)
        reported.append(by_request.step(dataclasses.replace(batch, request_N=REQUESTS)).logits_NL)
        learned = plain.step(dataclasses.replace(batch, request_N=REQUESTS)).logits_NL
        is_alone = np.isin(REQUESTS, [2, MISSING_ID, 5])
        np.testing.assert_array_equal(reported[-1][is_alone], learned[is_alone])
        first = np.flatnonzero(np.diff(REQUESTS, prepend=0))
        np.testing.assert_array_equal(reported[-1][first], learned[first])
    assert np.abs(reported[2] - learned).max() > 0.01
    for name, array in by_request.dense_arrays().items():
        np.testing.assert_array_equal(array, plain.dense_arrays()[name], err_msg=name)


def test_a_request_is_scored_at_once_where_crosses_are_looked_up_in_parts(monkeypatch):
    learners = [make_learner("logistic", NO_NUMBERS, by_request=True) for _ in range(2)]
    for number in range(3):
        batch = dataclasses.replace(make_batch(number, len(REQUESTS), NO_NUMBERS), request_N=REQUESTS)
        one = learners[0].step(batch).logits_NL
        with monkeypatch.context() as patch:
            patch.setattr(wide_step, "MAX_CROSSES", 100)  # a few samples'
            np.testing.assert_array_equal(learners[1].step(batch).logits_NL, one)
    assert wide_step.whole_requests(wide_step.run_ends(REQUESTS), 9) == 8
    assert wide_step.whole_requests(wide_step.NO_ENDS, 9) == 9


@pytest.mark.parametrize("last", range(10, 15))
def test_a_sample_of_a_request_is_scored_as_if_it_came_alone(last):
    by_request, asked = (make_learner("logistic", NO_NUMBERS, by_request=each) for each in (True, False))
    for learner in (by_request, asked):
        learner.optimizer.step = lambda *_: None  # a net learns batch by batch
        learner.step(make_batch(0, 300, NO_NUMBERS))
    batch = make_batch(2, len(REQUESTS), NO_NUMBERS)
    reported = by_request.step(dataclasses.replace(batch, request_N=REQUESTS)).logits_NL
    asked.step(part_of(batch, 0, 10))
    np.testing.assert_array_equal(reported[last], asked.step(part_of(batch, last, last + 1)).logits_NL[0])


@pytest.mark.parametrize("crosses", [64, 3, 0])
def test_a_thread_that_prepares_a_batch_while_the_net_computes_changes_no_bit(crosses):
    one, two = (make_learner("deepfm", crosses=crosses, threads=2) for _ in range(2))
    assert two.wide_step._thread is not None
    one.wide_step._thread = None
    for number, size in enumerate((1000, 700, 20, 600, 900)):
        batch = make_batch(number, size)
        np.testing.assert_array_equal(one.step(batch).logits_NL, two.step(batch).logits_NL)
    for name, array in one.dense_arrays().items():
        np.testing.assert_array_equal(array, two.dense_arrays()[name], err_msg=name)
    for name, table in one.table.tables.items():
        rows, others = table.export(), two.table.tables[name].export()
        for column in ("id", "value", "state", "count"):
            np.testing.assert_array_equal(getattr(rows, column), getattr(others, column), err_msg=name)


def test_the_thread_has_read_its_rows_before_an_error_of_the_net_leaves_the_step(monkeypatch):
    learner = make_learner(threads=2)
    learner.step(make_batch(0, 600))
    prepare, may_read, order = learner.wide_step.prepare, threading.Event(), []

    def slow_prepare(keys, lookup, reading):
        assert may_read.wait(DEADLINE_SECONDS)
        order.append("released" if lookup.released else "pinned")
        return prepare(keys, lookup, reading)

    def failing_net(*inputs):
        threading.Timer(0.05, may_read.set).start()  # after the error has left the net
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(learner.wide_step, "prepare", slow_prepare)
        patch.setattr(learner, "compiled", None)
        patch.setattr(learner.model, "forward", failing_net)
        with pytest.raises(RuntimeError, match="no memory"):
            learner.step(make_batch(1, 600))
        assert order == ["pinned"]
    assert np.isfinite(learner.step(make_batch(1, 600)).logits_NL).all()


def test_an_error_of_the_thread_is_raised_by_the_step(monkeypatch):
    learner = make_learner(threads=2)
    learner.step(make_batch(0, 600))
    with monkeypatch.context() as patch:
        patch.setattr(learner.table.tables["crosses"], "lookup_unique", Mock(side_effect=SpillError("full")))
        with pytest.raises(SpillError, match="full"):
            learner.step(make_batch(1, 600))
    assert np.isfinite(learner.step(make_batch(1, 600)).logits_NL).all()


@pytest.mark.parametrize("model", ["dlrm", "deepfm", "logistic"])
def test_each_net_learns_more_with_the_wide_part_from_large_batches(model):
    learner = make_learner(model)
    reports = [learner.step(make_batch(number, 512)) for number in range(8)]
    assert learner.skipped_steps == 0
    assert loss_of(reports[4:]) < 0.56  # the base rate's is 0.69


@pytest.mark.parametrize("optimizer", [{"name": "adam", "lr": 0.01}, {"name": "sgd", "lr": 0.05}])
def test_another_optimizer_of_rows_learns_too(optimizer):
    learner = make_learner("deepfm", optimizer=optimizer)
    reports = [learner.step(make_batch(number, 512)) for number in range(8)]
    assert loss_of(reports[4:]) < 0.56


def test_rows_know_when_they_were_born_and_crosses_have_rows_of_their_own():
    learner = make_learner()
    batch = make_batch(0, 64)
    learner.step(batch)
    learner.step(make_batch(1, 64))
    rows = learner.table.tables[""].export()
    own = rows.feature == 0
    born = rows.state[own, -1 - born_column(1) :][:, born_column(1) + 0]
    users = batch.features.categorical_NC[:, 0]
    for user, value in zip(rows.id[own].tolist(), born.tolist(), strict=True):
        if user in users:
            assert value == 1 + int(np.argmax(users == user))
    assert not (rows.feature == CROSSES).any()
    crosses = learner.table.tables["crosses"].export()
    assert len(crosses) > 100
    assert (crosses.feature == CROSSES).all()
    assert (crosses.count > 0).all()
    assert crosses.value.shape == (len(crosses), 2)
    assert crosses.state.shape == (len(crosses), 0)
    assert np.abs(crosses.value[:, 0]).max() > 0
    assert not np.signbit(crosses.value[crosses.value == 0]).any()


def test_pairs_that_gain_least_are_dropped_until_few_live():
    learner = make_learner(crosses=3)
    assert learner.wide is not None
    assert len(learner.wide.arrays.live_pairs) == 10
    learner.step(make_batch(0, 600))
    assert len(learner.wide.arrays.live_pairs) == 5
    learner.step(make_batch(1, 1000))
    assert len(learner.wide.arrays.live_pairs) == 3


def test_the_most_crosses_of_a_batch_are_known_before_it_is_learned():
    learner, most = make_learner(crosses=3), []
    for number in range(8):
        batch = make_batch(number, 200)
        most.append(learner.wide_step.max_crosses(batch))
        learner.step(batch)
        assert learner.num_crosses <= most[-1]
    assert 0 < learner.num_crosses <= most[-1] < most[0] / 3


def test_without_crosses_none_are_made():
    learner = make_learner(crosses=0)
    learner.step(make_batch(0, 100))
    learner.step(make_batch(1, 100))
    assert list(learner.table.tables) == [""]
    assert not (learner.table.export().feature == CROSSES).any()


def test_an_enormous_weight_is_survived():
    learner = make_learner()
    learner.step(make_batch(0))
    learner.step(dataclasses.replace(make_batch(1), weights_N=np.full(32, 3e38, np.float32)))
    assert np.isfinite(learner.step(make_batch(2)).logits_NL).all()


def test_a_net_with_a_part_of_that_name_is_refused():
    config = ModelConfig(name="dlrm", wide=True)
    net = build_model(config, ModelSpec.of(SCHEMA, 4), seed=0)
    net.wide = 1
    with pytest.raises(ValueError, match="rename it, or set wide = false"):
        add_wide_part(net, config, SCHEMA)


def test_many_fields_do_not_make_pairs_without_number():
    schema = Schema(labels=("click",), categorical=tuple(f"f{number}" for number in range(150)))
    learner = make_learner(schema=schema, crosses=8)
    assert len(learner.wide.arrays.live_pairs) == 1024
    batch, random = make_batch(0, 40), np.random.default_rng(0)
    features = Features(random.integers(0, 9, (40, 150)), (), np.zeros((40, 0), np.float32))
    reports = [learner.step(dataclasses.replace(batch, features=features, id_strings=[])) for _ in range(3)]
    assert all(np.isfinite(report.logits_NL).all() for report in reports)
    assert sum(report.loss for report in reports[1:]) < 2 * reports[0].loss
    assert len(crosses_in(learner)) <= 40 * 1024


def test_an_erased_id_that_comes_again_begins_anew():
    learner = make_learner()
    batch = make_batch(0, 200)
    learner.step(batch)
    learner.step(make_batch(1, 200))
    keys = np.zeros(40, np.uint16), np.arange(40)
    before = wide_columns(learner, *keys)
    assert (before[:, born_column(1)] > 0).all()
    crosses = set(crosses_in(learner))
    learner.table.forget(*keys)
    assert not wide_columns(learner, *keys).any()
    learner.step(part_of(batch, 0, 100))
    learner.step(part_of(batch, 100, 200))
    seen = np.unique(batch.features.categorical_NC[:, 0])
    after = wide_columns(learner, np.zeros(len(seen), np.uint16), seen)
    assert (after[:, born_column(1)] > 400).all()
    assert len(crosses_in(learner) - crosses) > 100


def test_crosses_of_an_erased_id_are_never_found_again():
    """They have rows until these are evicted, but neither the id's text nor its number is in them or in their keys."""
    learner = make_learner()
    for number in range(2):
        learner.step(make_batch(number, 200))
    users, genres = (np.zeros(40, np.uint16), np.arange(40)), (np.full(30, 2, np.uint16), np.arange(30))
    crosses = learner.table.tables["crosses"]
    rows = crosses.export()
    left = np.intersect1d(all_crosses(learner, users, genres), rows.id)
    assert len(left) > 100
    counts = dict(zip(rows.id.tolist(), rows.count.tolist(), strict=True))
    learner.table.forget(*users)
    assert not np.isin(all_crosses(learner, users, genres), rows.id).any()
    for number in range(2):  # the same samples
        learner.step(make_batch(number, 200))
    again = crosses.export()
    now = dict(zip(again.id.tolist(), again.count.tolist(), strict=True))
    assert all(now[row_id] == counts[row_id] for row_id in left.tolist())
    assert not np.isin(all_crosses(learner, users, genres), left).any()
    keys = set(again.id.tolist())
    assert not keys & set(range(2000))
    assert sum(now.values()) > sum(counts.values())


def all_crosses(learner: Learner, left: tuple, right: tuple) -> np.ndarray:
    """The ids of the crosses of every key on the left with every key on the right that samples have used."""
    hashes = []
    for features_K, ids_K in (left, right):
        born_K = wide_columns(learner, features_K, ids_K)[:, born_column(1)]
        hashes.append(row_hashes(features_K.astype(np.int64), ids_K, born_K))
    return cross_ids(np.repeat(hashes[0], len(hashes[1])), np.tile(hashes[1], len(hashes[0])))


def wide_columns(learner: Learner, features_K, ids_K) -> np.ndarray:
    lookup = learner.table.rows.lookup(features_K, ids_K, np.full(len(ids_K), 1_600_000_000_000))
    states = learner.table.rows.read_rows(lookup).states_NS
    lookup.release()
    return states[:, -wide_width(1) :]


def crosses_in(learner: Learner) -> set[int]:
    return set(learner.table.tables["crosses"].export().id.tolist())


@pytest.mark.parametrize(
    "schema",
    [
        Schema(labels=("click",), dense=("age", "price")),
        Schema(labels=("click",), categorical=("user_id",)),
        Schema(labels=("click",), multi_value=("genres",)),
        Schema(
            labels=tuple(f"label{n}" for n in range(8)), categorical=("user_id",), sequence=("last",), dense=("age",)
        ),
    ],
    ids=["numbers only", "one field", "one list", "eight labels"],
)
@pytest.mark.parametrize("model", ["dlrm", "deepfm"])
def test_unusual_schemas_learn_in_batches_of_any_size(schema, model):
    learner = make_learner(model, schema)
    for number, size in enumerate((1, 50, 1)):
        assert np.isfinite(learner.step(make_batch(number, size, schema)).logits_NL).all()
    batch = make_batch(9, 20, schema)
    nothing = tuple(Ragged(np.zeros(0, np.int64), np.zeros(21, np.int64)) for _ in batch.features.lists)
    long = tuple(Ragged(np.arange(1000) % 60, np.arange(21) * 50) for _ in batch.features.lists)
    for lists, dense in ((nothing, np.nan), (long, 1e38)):
        features = Features(
            np.full_like(batch.features.categorical_NC, MISSING_ID), lists, np.full_like(batch.features.dense_NF, dense)
        )
        report = learner.step(dataclasses.replace(batch, features=features))
        assert np.isfinite(report.logits_NL).all()
    assert learner.skipped_steps == 0
