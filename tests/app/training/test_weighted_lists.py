"""Ids with weights mean the same to the trainer, to servers, to HotModel and in the exported net, at every pooling."""

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.app.models.export.onnx_export import export_onnx, is_possible
from springtide.app.version_log.compact.onnx import replace_weights
from springtide.stream.columns import Batch
from springtide_client import HotModel
from springtide_client.encode import encode_instances
from springtide_client.explore import scores_of
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.model.view import View
from tests.app.serving.conftest import World
from tests.app.training.random_clicks import RANDOM_CLICKS, make_batch
from tests.support.config import config_in
from tests.support.learned_log import LearnedLog
from tests.support.waiting import wait_until

NUM_SAMPLES = 5


def config_of(folder: Path, *, pooling: str = "mean", wide: bool = True, **genres: Any) -> Config:
    changes = {
        "features": {"genres": {"weighted": True, "pooling": pooling, **genres}},
        "table": {"dim": 8, "device_bytes": "16MiB"},
        "model": {"name": "dlrm", "wide": wide},
        "train": {"threads": 1},
        "log": {"log_bytes": "1GiB", "onnx": False},
    }
    return config_in(folder, RANDOM_CLICKS, changes)


def instance_of(batch: Batch, *, in_pairs: bool) -> dict[str, Any]:
    """Return the features of a batch's only sample as a record has them."""
    features = batch.features
    genres, last = features.lists
    assert genres.weights_M is not None
    pairs = [[id_, weight] for id_, weight in zip(genres.ids_M.tolist(), genres.weights_M.tolist(), strict=True)]
    numbers = zip(("age", "price"), features.dense_NF[0].tolist(), strict=True)
    return {
        "user_id": int(features.categorical_NC[0, 0]),
        "item_id": int(features.categorical_NC[0, 1]),
        "genres": pairs if in_pairs else {str(id_): weight for id_, weight in pairs},
        "last_items": last.ids_M.tolist(),
        **{name: number for name, number in numbers if not math.isnan(number)},
    }


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_trainer_server_hot_model_and_onnx_agree_on_weights(pooling: str, wide: bool, tmp_path: Path) -> None:
    trainer = LearnedLog(config_of(tmp_path, pooling=pooling, wide=wide))
    world = World(SimpleNamespace(path=trainer.config.log.path))  # type: ignore[arg-type]
    try:
        trainer.learn(range(3))
        trainer.log.sync()
        content = None
        if not wide and is_possible():
            content = export_onnx(next(trainer.config.log.path.glob("**/model.pt2")).read_bytes())
        client = world.serve()
        hot = HotModel(trainer.config.log.path)
        try:
            differences = []
            for n in range(NUM_SAMPLES):
                sample = make_batch(100 + n, 1, trainer.config.schema)
                instance = instance_of(sample, in_pairs=n % 2 == 0)
                number = trainer.checkpoint()
                trainer.log.sync()
                wait_until(lambda number=number: hot.version == number)
                world.served(client, number)
                (local,) = hot.predict([instance])
                answer = client.post("/v1/predict", json={"instances": [instance]}).json()
                assert answer["version"] == number
                shared = {"context": {"genres": instance["genres"]}, "candidates": [{**instance}, {"item_id": 3}]}
                del shared["candidates"][0]["genres"]
                ranked = client.post("/v1/rank", json=shared).json()
                exported = None
                if content is not None:
                    view = hot._follower.view
                    assert view is not None
                    exported = onnx_logit(content, trainer, view, instance)
                (logit,) = trainer.state.learner.step(sample).logits_NL[0].tolist()
                if exported is not None:
                    assert exported == pytest.approx(logit, rel=1e-4, abs=1e-5)
                expected = 1 / (1 + math.exp(-logit))
                assert local["click"] == pytest.approx(expected, rel=1e-5)
                assert answer["predictions"][0]["click"] == pytest.approx(local["click"], rel=1e-6)
                scores = {item["index"]: item["score"] for item in ranked["items"]}
                assert scores[0] == pytest.approx(scores_of([local["click"]])[0], abs=1e-4)
                ones = instance | {"genres": [[id_, 1] for id_ in sample.features.lists[0].ids_M.tolist()]}
                differences.append(abs(hot.predict([ones])[0]["click"] - local["click"]))
            assert max(differences) > 1e-4  # weights are not dropped
        finally:
            hot.close()
    finally:
        world.close()
        trainer.end()


def onnx_logit(content: bytes, trainer: LearnedLog, view: View, instance: dict[str, Any]) -> float:
    """Return the logit of the net's ONNX file with the trainer's parameters, for the instance's pooled rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    weighed = replace_weights(content, trainer.state.learner.dense_arrays())
    session = runtime.InferenceSession(weighed, providers=["CPUExecutionProvider"])
    features = encode_instances(view.schema, [instance])
    rows_KD, _ = view.rows_for_model(*lookup_keys(view.schema, features))
    (logits_NL,) = session.run(["logits"], assemble(view.schema, features, rows_KD)._asdict())
    return float(logits_NL[0, 0])


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ({"genres": {"weighted": True, "pooling": "max"}}, 'pooling = "max" takes the greatest number and no weights'),
        ({"last_items": {"weighted": True}}, "only ids of multi_value features have weights"),
        ({"user_id": {"weighted": True}}, "only ids of multi_value features have weights"),
    ],
)
def test_weights_that_cannot_be_are_refused_by_name(features: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        config_in(tmp_path, RANDOM_CLICKS, {"features": features})


def test_weighted_lists_of_items_are_refused_and_of_users_are_not(tmp_path: Path) -> None:
    model = {"name": "two_tower", "options": {"item": ["item_id", "genres"]}}
    weighted = {"genres": {"weighted": True}}
    with pytest.raises(UserError, match="lists of items have no weights"):
        config_in(tmp_path, RANDOM_CLICKS, {"model": model, "features": weighted})
    model["options"] = {"item": ["item_id"]}
    config_in(tmp_path, RANDOM_CLICKS, {"model": model, "features": weighted})


def test_a_log_goes_on_with_its_rows_when_lists_become_weighted_and_when_they_no_longer_are(tmp_path: Path) -> None:
    plain = config_in(tmp_path, RANDOM_CLICKS, {"features": {}, "table": {"dim": 8, "device_bytes": "16MiB"}})
    weighted = config_in(
        tmp_path,
        RANDOM_CLICKS,
        {"features": {"genres": {"weighted": True}}, "table": {"dim": 8, "device_bytes": "16MiB"}},
    )
    assert plain.schema.fingerprint() != weighted.schema.fingerprint()
    num_rows = []
    for config in (plain, weighted, plain):
        trainer = LearnedLog(config)
        trainer.learn(range(2))
        num_rows.append(trainer.state.samples_trained)
        trainer.end()
    assert num_rows == [64, 128, 192]
