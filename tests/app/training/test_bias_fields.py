"""Bias fields from the topic to the answer: learned beside the features, replaced where predictions are made."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from springtide.app.config.load import Config
from springtide.app.models.export.onnx_export import is_possible
from springtide.app.training.bootstrap import signature_of
from springtide.app.version_log.change.plan import plan_change
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.onnx import OnnxBuilder
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide.stream.columns import Batch, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.positions import Partition
from springtide_client.encode import encode_instances
from springtide_client.hot_model import HotModel
from springtide_client.keys import MISSING_ID, encode_id
from springtide_client.log.base import ONNX, Base
from springtide_client.model.view import View
from springtide_client.rows.initial_values import initial_values
from springtide_client.schema import Schema
from tests.app.serving.conftest import World
from tests.app.training.random_clicks import RANDOM_CLICKS, make_batch
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog

BIASED = {"schema": {"bias": ["position", "layout"]}, "model": {"name": "deepfm", "crosses": 4}}
POSITIONS, LAYOUTS = (1, 2, 3, None), ("grid", "list", None)


def config_of(folder: Path, serve: Any = "none", *changes: Section) -> Config:
    return config_in(folder, RANDOM_CLICKS, BIASED, {"bias": {"serve": serve}}, *changes)


def presented(batch: Batch, seed: int) -> Batch:
    """The batch with random places and layouts."""
    random = np.random.default_rng([seed, 3])
    columns = [[encode_id(value)[0] for value in values] for values in (POSITIONS, LAYOUTS)]
    bias_NB = np.stack([random.choice(ids, len(batch)) for ids in columns], axis=1)
    return replace(batch, features=replace(batch.features, bias_NB=bias_NB))


class Log(LearnedLog):
    """Learns random clicks that were presented at random; notes the logits with which samples were scored."""

    samples = 100

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.logits: list[np.ndarray] = []  # type: ignore[type-arg]
        observe = self.state.scores.observe

        def noting(logits_NL: np.ndarray, *others: Any, **columns: Any) -> None:  # type: ignore[type-arg]
            self.logits.append(logits_NL.copy())
            observe(logits_NL, *others, **columns)

        self.state.scores.observe = noting  # type: ignore[method-assign]

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        return presented(batch, number) if self.config.schema.bias else batch


def logits_of(view: View, features: Any) -> np.ndarray:  # type: ignore[type-arg]
    return view.predict_wide(features).logits_NL[:, 0]


def test_samples_are_scored_as_they_are_served_when_a_request_says_how_they_are_presented(tmp_path: Path) -> None:
    with Log(config_of(tmp_path, "request")) as made:
        plain = View.open(made.directory.newest_base())
        compiled = View.open(made.directory.newest_base(), plain, LayerSearchCache(), compiled_steps())
        for number in range(8):
            batch = made.batch(number)
            before = logits_of(plain, batch.features)
            np.testing.assert_array_equal(before, logits_of(compiled, batch.features))
            made.state.learn(batch)
            assert made.state.scores.num_samples  # counted now
            np.testing.assert_allclose(made.logits[-1][0, 0], np.float32(before[0]), rtol=0, atol=1e-6)
            made.checkpoint()
            made.log.sync()
            for record in made.directory.records(plain.head):
                plain, compiled = plain.apply(record), compiled.apply(record).merged()


def test_log_odds_are_those_of_the_features_and_those_of_the_presentation(tmp_path: Path) -> None:
    with Log(config_of(tmp_path, "request", {"model": {"crosses": 64}})) as made:
        made.learn(range(12))
        view, features = made.view(), make_batch(99, 50, made.config.schema).features

        def presented_as(position: int | None, layout: str | None) -> np.ndarray:  # type: ignore[type-arg]
            bias = [encode_id(position)[0], encode_id(layout)[0]]
            return logits_of(view, replace(features, bias_NB=np.tile(bias, (50, 1))))

        of_features, moves, layouts = presented_as(1, "grid"), [], []
        for position in (1, 2, 3, 77, None):
            for layout in LAYOUTS:
                move_N = presented_as(position, layout) - of_features
                np.testing.assert_allclose(move_N, move_N[0], rtol=0, atol=1e-9)
                moves.append(move_N[0])
                layouts.append(layout)
        assert len(set(np.round(moves, 9))) == 15
        by_layout = np.reshape(moves, (5, 3))
        assert np.ptp(by_layout[:3] - by_layout[:3, :1], axis=0).max() > 1e-6  # position and layout are crossed
        assert of_features.std() > 0.1


def test_rows_of_bias_fields_keep_their_first_vectors(tmp_path: Path) -> None:
    with Log(config_of(tmp_path)) as made:
        made.learn(range(4))
        rows, table = made.state.learner.table.tables[""].export(), made.config.table
        of_bias = np.isin(rows.feature, made.config.schema.bias_numbers)
        assert of_bias.sum() == len(POSITIONS) + len(LAYOUTS)
        keys, seed = (rows.feature[of_bias], rows.id[of_bias]), made.config.train.seed
        first = initial_values(*keys, dim=table.dim, seed=seed, scale=table.init_scale)
        np.testing.assert_array_equal(rows.value[of_bias], first)  # as they began


@pytest.mark.skipif(not is_possible(), reason="the extra onnx is not installed: pip install 'springtide[onnx]'")
def test_the_exported_net_has_no_input_for_bias_fields(tmp_path: Path) -> None:
    import onnx

    shapes = []
    for folder, config in ((tmp_path / "a", config_of(tmp_path / "a")), (tmp_path / "b", None)):
        with Log(config or config_in(folder, RANDOM_CLICKS, {"model": BIASED["model"]})) as made:
            made.learn(range(2))
            made.log.sync()
            made.checkpoint()  # it says that the version before is durable
            made.log.sync()
            base = Base.open(compact_log(made.directory, window_samples=10, onnx=OnnxBuilder()))
        graph = onnx.load(base.path / ONNX).graph
        shapes.append({one.name: str(one.type.tensor_type.shape) for one in graph.input})
    assert shapes[0] == shapes[1]


def test_the_wide_part_goes_on_when_bias_fields_come_and_go(tmp_path: Path) -> None:
    without = RANDOM_CLICKS, {"model": BIASED["model"]}
    with Log(config_in(tmp_path, *without)) as made:
        made.learn(range(3))
        arrays = made.state.learner.dense_arrays()
        assert "wide.num_bias_1" not in arrays
        before = signature_of(made.config, made.state.learner.model)
    with Log(config_of(tmp_path)) as made:
        began = made.state.learner.dense_arrays()
        assert began["wide.num_samples_1"] == 300
        assert began["wide.num_bias_1"] == 2
        np.testing.assert_array_equal(began["wide.gates_LTB"][:, :5], arrays["wide.gates_LTB"][:, :5])
        after = signature_of(made.config, made.state.learner.model)
        plan = plan_change(before, after)
        assert {"rows of position", "rows of layout"} <= set(plan.begun)
        assert "the wide part's gates, statistics and weights of numbers" in plan.kept
        made.learn(range(3, 6))
        weights = first_weights(made)
    with Log(config_of(tmp_path, {"position": 1})) as made:  # only what is served has changed
        served = signature_of(made.config, made.state.learner.model)
        plan = plan_change(after, served)
        assert plan.changes == ("[bias] serve",)
        assert not plan.begun
        np.testing.assert_array_equal(first_weights(made), weights)
        made.learn(range(6, 7))
        assert made.view().schema.served_bias == (1, MISSING_ID)
    with Log(config_in(tmp_path, *without)) as made:
        assert made.state.learner.dense_arrays()["wide.num_samples_1"] == 700
        made.learn(range(7, 8))


def first_weights(made: Log) -> np.ndarray:  # type: ignore[type-arg]
    """What the wide part knows of each position, float32 (4, W)."""
    number, ids = made.config.schema.bias_number("position"), [encode_id(position)[0] for position in POSITIONS]
    found = made.view().model_rows.wide_rows(np.full(len(ids), number, np.uint16), np.array(ids)).found
    assert not found.status_K.any()
    return found.states_KW


@pytest.fixture
def serve() -> Iterator[Any]:
    worlds = []

    def start(path: Path, number: int) -> httpx.Client:
        worlds.append(World(SimpleNamespace(path=path)))  # type: ignore[arg-type]
        client = worlds[-1].serve()
        worlds[-1].served(client, number)
        return client

    yield start
    for world in worlds:
        world.close()


INSTANCES = [{"user_id": user, "item_id": user * 3, "age": 20 + user} for user in range(6)]


@pytest.mark.parametrize("served", [{"position": 1}, "none", "request"])
def test_answers_depend_on_a_requests_position_only_if_they_are_asked_to(
    tmp_path: Path, serve: Any, served: Any
) -> None:
    with Log(config_of(tmp_path, served)) as made:
        (*_, number) = made.learn(range(8))
        path = made.config.log.path
        client = serve(path, number)

        def answer(**presentation: Any) -> list[float]:
            instances = [{**one, **presentation} for one in INSTANCES]
            whole = client.post("/v1/predict", json={"instances": instances}).json()["predictions"]
            split = client.post("/v1/predict", json={"candidates": INSTANCES, "context": presentation or {"x": 1}})
            assert split.json()["predictions"] == whole
            ranked = client.post("/v1/rank", json={"candidates": instances}).json()
            with HotModel(path) as local:
                predicted = local.predict(instances)
                served_N = [one["click"] for one in whole]
                assert [one["click"] for one in predicted] == served_N
            assert ranked["order"] == np.argsort(-np.array(served_N), kind="stable").tolist()
            return served_N

        answers = [answer(), answer(position=1), answer(position=2), answer(position=2, layout="grid")]
        assert len({tuple(one) for one in answers}) == (4 if served == "request" else 1)
        refused = client.post("/v1/predict", json={"instances": [{"user_id": 1, "position": 0.5}]})
        assert refused.status_code == (422 if served == "request" else 200)


# A simulated examination: a click is an item that was seen and is relevant; lists are those of an older, noisy model.

SEGMENTS, ITEMS, PLACES, SHOWN = 4, 100, 8, 15_000
SEEN_P = 1 / np.arange(1, PLACES + 1)


class Shop:
    """Items whose relevance differs by segment, and the requests that an older model has answered."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        taste_SI = random.uniform(0.4, 1.6, (SEGMENTS, ITEMS))
        self.relevance_SI = 0.02 + 0.3 * random.beta(1, 3, (1, ITEMS)) * taste_SI
        old_SI = np.log(self.relevance_SI) + random.normal(0, 1.0, taste_SI.shape)
        self.rows: list[dict[str, int]] = []
        for _ in range(SHOWN):
            segment = int(random.integers(SEGMENTS))
            some = random.choice(ITEMS, 2 * PLACES, replace=False)
            for place, item in enumerate(some[np.argsort(-old_SI[segment, some])][:PLACES].tolist()):
                chance = SEEN_P[place] * self.relevance_SI[segment, item]
                row = {"segment": segment, "item": item, "position": place + 1}
                self.rows.append(row | {"click": int(random.random() < chance)})

    def ndcg(self, scores_SI: np.ndarray) -> float:  # type: ignore[type-arg]
        """NDCG@10 of 20 random items against their true relevance, the mean of 400 lists."""
        random, discounts = np.random.default_rng(9), 1 / np.log2(np.arange(2, 12))
        found = []
        for _ in range(400):
            segment, some = random.integers(SEGMENTS), random.choice(ITEMS, 20, replace=False)
            gains = self.relevance_SI[segment, some]
            order = np.argsort(-scores_SI[segment, some])
            found.append(gains[order][:10] @ discounts / (np.sort(gains)[::-1][:10] @ discounts))
        return float(np.mean(found))


@cache
def shop() -> Shop:
    return Shop()


BATCH, PARTS = 64, 10


def learn_shop(folder: Path, schema: Section, bias: Section | None = None) -> tuple[list[View], list[dict[str, int]]]:
    """Learn the shop's rows; return the views after each tenth of them, and the rows."""
    made_of: Section = {"name": "shop", "source": {"topic": "clicks"}, "schema": {"label": "click", **schema}}
    config = config_in(folder, made_of, {"model": {"name": "deepfm"}}, {} if bias is None else {"bias": bias})
    rows = shop().rows
    raw = RawRecords.from_messages(Partition("clicks", 0), [json.dumps(row).encode() for row in rows])
    columns, views = Decoder(config.schema, config.source).decode(raw, 1_700_000_000_000), []
    with LearnedLog(config) as made:
        for number, start in enumerate(range(0, len(rows), BATCH), 1):
            own = slice(start, min(start + BATCH, len(rows)))
            batch = replace(
                make_batch(number, own.stop - own.start, config.schema),
                features=columns.features.slice(own.start, own.stop),
                labels_NL=columns.labels_NL[own],
                weights_N=columns.weights_N[own],
                id_strings=[],
                dead_letters=(),
            )
            made.state.learn(batch)
            if own.stop * PARTS // len(rows) > start * PARTS // len(rows):
                made.checkpoint()
                views.append(made.view())
    return views, rows


def scores_of(view: View, **presentation: int) -> np.ndarray:  # type: ignore[type-arg]
    pairs = [(segment, item) for segment in range(SEGMENTS) for item in range(ITEMS)]
    instances = [{"segment": segment, "item": item, **presentation} for segment, item in pairs]
    scores: np.ndarray = view.predict(encode_instances(view.schema, instances))[:, 0].reshape(SEGMENTS, ITEMS)  # type: ignore[type-arg]
    return scores


def test_relevance_is_learned_from_the_lists_of_a_noisy_older_model(tmp_path: Path) -> None:
    truth, features = shop(), {"categorical": ["segment", "item"]}
    views, rows = learn_shop(tmp_path / "bias", {**features, "bias": ["position"]}, {"serve": {"position": 1}})
    as_feature, _ = learn_shop(tmp_path / "feature", {"categorical": ["segment", "item", "position"]})
    without, _ = learn_shop(tmp_path / "without", features)
    best = truth.ndcg(scores_of(views[-1]))
    others = [scores_of(as_feature[-1]), scores_of(as_feature[-1], position=1), scores_of(without[-1])]
    ndcgs = [truth.ndcg(each) for each in others]
    assert best > max(ndcgs) + 0.01, (best, ndcgs)
    # served with position 1, it predicts the clicks of items that are seen first
    predicted = true = 0.0
    for part, view in enumerate(views[1:-1], 2):
        scores_SI = scores_of(view)
        for row in rows[part * len(rows) // PARTS : (part + 1) * len(rows) // PARTS]:
            if row["position"] == 1:
                predicted += scores_SI[row["segment"], row["item"]]
                true += truth.relevance_SI[row["segment"], row["item"]]
    assert abs(predicted / true - 1) < 0.03, predicted / true


def test_a_schema_with_bias_fields_is_read_back_with_them_in_order() -> None:
    schema = Schema(
        labels=("click",),
        categorical=("user",),
        dense=("age",),
        bias=("position", "layout"),
        served_values={"layout": "grid"},
    )
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert again.bias_numbers == (2, 3)
    assert again.served_bias == (MISSING_ID, encode_id("grid")[0])
    assert b"bias" not in replace(schema, bias=(), served_values={}).to_json()
