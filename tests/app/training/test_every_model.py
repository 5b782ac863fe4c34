"""Every built-in net through the whole loop: trained, published, followed, exported, and continued after a kill."""

import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from springtide.app.config.load import Config
from springtide.app.models.export.onnx_export import export_onnx, is_possible
from springtide.stream.columns import Batch
from springtide_client import HotModel
from springtide_client.model.exported_model import ExportedModel
from springtide_client.model.inputs import ModelInputs
from tests.app.training.random_clicks import RANDOM_CLICKS, SCHEMA, make_batch
from tests.support.config import config_in
from tests.support.learned_log import LearnedLog
from tests.support.model_variants import LOOPED, VARIANTS
from tests.support.scale import IS_LONG
from tests.support.waiting import wait_until

NUM_VERSIONS = 100 if IS_LONG else 3
LABELS = ("click", "order")  # some nets need two


def config_of(folder: Path, variant: str, *, wide: bool) -> Config:
    """Return the settings of a net; rows of items are narrower than others."""
    model = VARIANTS[variant]
    changes = {
        "schema": {"label": None, "labels": list(LABELS)},
        "features": {"item_id": {"dim": 4}},
        "table": {"dim": 8, "device_bytes": "16MiB"},
        "model": {"name": model.name, "options": dict(model.options), "wide": wide, "crosses": 4},
        "train": {"threads": 1},
        "log": {"log_bytes": "1GiB", "onnx": False},
    }
    return config_in(folder, RANDOM_CLICKS, changes)


class Trainer(LearnedLog):
    samples = 24


def instance_of(batch: Batch) -> dict[str, Any]:
    """Return the features of a batch's first sample as a record has them."""
    features, lists = batch.features, {}
    for name, ragged in zip(SCHEMA.lists, features.lists, strict=True):
        lists[name] = ragged.ids_M[: ragged.offsets[1]].tolist()
    numbers = zip(SCHEMA.dense, features.dense_NF[0].tolist(), strict=True)
    return {
        **dict(zip(SCHEMA.categorical, features.categorical_NC[0].tolist(), strict=True)),
        **lists,
        **{name: number for name, number in numbers if not math.isnan(number)},
    }


@pytest.mark.parametrize("wide", [False, True] if IS_LONG else [True])
@pytest.mark.parametrize("variant", LOOPED)
def test_a_net_is_followed_while_it_learns_and_continues_bit_by_bit_after_a_kill(
    variant: str, wide: bool, tmp_path: Path
) -> None:
    trainer = Trainer(config_of(tmp_path / "whole", variant, wide=wide))
    trainer.learn(range(1))
    trainer.log.sync()
    # what the disk holds while the trainer runs is what a kill leaves behind
    shutil.copytree(tmp_path / "whole" / "log", tmp_path / "killed" / "log")
    hot = HotModel(tmp_path / "whole" / "log")
    try:
        first = hot.version
        trainer.learn(range(1, NUM_VERSIONS))
        wait_until(lambda: hot.version == trainer.log.last_number, "the newest version")
        assert hot.version == first + NUM_VERSIONS - 1
        arrays = trainer.state.learner.dense_arrays()
        sample = make_batch(NUM_VERSIONS, 1, trainer.config.schema)
        (served,) = hot.predict([instance_of(sample)])
        logits_NL = trainer.state.learner.step(sample).logits_NL
    finally:
        hot.close()
        trainer.end()
    expected = 1 / (1 + np.exp(-logits_NL[0].astype(np.float64)))
    np.testing.assert_allclose([served[label] for label in LABELS], expected, rtol=1e-5)

    again = Trainer(config_of(tmp_path / "killed", variant, wide=wide))
    again.learn(range(1, NUM_VERSIONS))
    continued = again.state.learner.dense_arrays()
    continued_NL = again.state.learner.step(sample).logits_NL  # from rows and net
    again.end()
    assert continued.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(continued[name], array, err_msg=name)
    np.testing.assert_array_equal(continued_NL, logits_NL)
    if IS_LONG and not wide and is_possible():
        compare_onnx(next((tmp_path / "whole" / "log").glob("**/model.pt2")))


def compare_onnx(program: Path) -> None:
    """Compare the logits of the net as exported and as ONNX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    exported, random = ExportedModel.load(program), np.random.default_rng(0)
    session = runtime.InferenceSession(export_onnx(program.read_bytes()), providers=["CPUExecutionProvider"])
    initial = exported.parameters({})
    for num_samples, longest in [(1, 1), (5, 3)]:
        inputs = ModelInputs(
            random.normal(size=(num_samples, 2, 8)).astype(np.float32),
            random.normal(size=(num_samples, 1, 8)).astype(np.float32),
            random.normal(size=(num_samples, 1, longest, 8)).astype(np.float32),
            random.integers(0, longest + 1, (num_samples, 1)),
            random.lognormal(1, 1, (num_samples, 2)).astype(np.float32),
        )
        (logits_NL,) = session.run(["logits"], inputs._asdict())
        np.testing.assert_allclose(logits_NL, exported.logits(initial, inputs), rtol=1e-5, atol=1e-5)
