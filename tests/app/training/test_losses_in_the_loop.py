"""Three labels with a loss each, one of them a dwell time: decoded, learned, served, and continued bit by bit."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.stream.columns import Batch
from tests.app.training.random_clicks import make_batch
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog

SETTINGS = """
name = "losses"
[schema]
labels = ["click", "order", "seconds"]
timestamp = "ts"
categorical = ["user_id", "item_id"]
dense = ["age"]
[labels.click]
loss = "pairwise"
group = "user_id"
[labels.order]
weight = 2.0
[labels.seconds]
loss = "msle"
[table]
device_bytes = "16MiB"
[model]
name = "mmoe"
wide = true
crosses = 1
[train]
task_weights = "uncertainty"
threads = 1
[log]
log_bytes = "1GiB"
onnx = false
"""


def config_of(folder, *changes: Section) -> Config:
    return config_in(folder, SETTINGS, *changes)


def batch_of(config: Config, number: int, samples: int = 32) -> Batch:
    batch = make_batch(number, samples, schema=config.schema)
    users, labels_NL = batch.features.categorical_NC[:, 0], batch.labels_NL.copy()
    labels_NL[:, 2] = np.exp(users % 5 + np.random.default_rng(number).normal(2, 0.3, samples))
    labels_NL[::4, 2] = np.nan
    return replace(batch, labels_NL=labels_NL)


def learn(config: Config, start: int, stop: int):
    """Learn batches, each into a version of its own; return the net, the scores, a follower's view, the next logits."""
    with LearnedLog(config) as made:
        state = made.state
        for number in range(start, stop):
            state.learn(batch_of(config, number))
            made.checkpoint()
        arrays, scores, view = state.learner.dense_arrays(), state.scores.document(), made.view()
        return arrays, scores, view, state.learner.step(batch_of(config, stop)).logits_NL


@pytest.mark.parametrize("wide", [False, True])
def test_labels_with_losses_of_their_own_are_served_and_continue_bit_by_bit(tmp_path, wide) -> None:
    change = {"model": {"wide": wide}}
    config = config_of(tmp_path / "whole", change)
    learn(config, 0, 1)
    shutil.copytree(tmp_path / "whole" / "log", tmp_path / "again" / "log")
    learn(config, 1, 2)
    arrays, scores, view, logits_NL = learn(config, 2, 4)
    more, _, _, continued_NL = learn(config_of(tmp_path / "again", change), 1, 4)
    np.testing.assert_array_equal(logits_NL, continued_NL)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, more[name], err_msg=name)
    assert (arrays["task_weights.log_variances_L"] != 0).all()

    served_NL = view.predict(batch_of(config, 4).features)
    # with the wide part the first sample alone: the others are scored after it was learned
    compared = slice(1 if wide else None)
    probabilities = 1 / (1 + np.exp(-logits_NL[compared, :2].astype(np.float64)))
    np.testing.assert_allclose(served_NL[compared, :2], probabilities, rtol=1e-5)
    np.testing.assert_allclose(served_NL[:, 2], np.expm1(np.maximum(logits_NL[:, 2], 0)), rtol=1e-4, atol=1e-4)
    assert 5 < served_NL[:, 2].mean() < 500

    seconds = scores["tasks"]["seconds"]["whole"]
    assert seconds["auc"] is seconds["logloss"] is None
    assert 0 < seconds["rmse"] < 10
    assert seconds["label_rate"] > 1
    assert scores["tasks"]["click"]["whole"]["auc"] is not None


def test_a_value_may_be_any_number_and_of_logarithms_none_below_zero(tmp_path) -> None:
    from springtide_client.errors import EncodeError
    from springtide_client.targets import parse_targets

    schema = config_of(tmp_path).schema
    assert schema.links == {"seconds": "log1p"}

    def labels(record, schema=schema):
        return parse_targets(schema, {"ts": 0, **record}, record_ms=0, now_ms=1, max_future_seconds=1).labels

    assert labels({"click": 1, "order": 0, "seconds": 345.5}) == [1, 0, 345.5]
    assert labels({"seconds": -3}, replace(schema, links={"seconds": "identity"}))[2] == -3
    for record in ({"seconds": -3}, {"click": 2}):
        with pytest.raises(EncodeError, match="label"):
            labels(record)


def test_settings_that_contradict_each_other_are_errors(tmp_path) -> None:
    all_values = {"labels": {"order": {"weight": None, "loss": "mse"}, "click": {"loss": "huber", "group": None}}}
    with pytest.raises(UserError, match=r"wide = true: .* every label here is a value"):
        config_of(tmp_path, all_values)
    without = config_of(tmp_path, all_values, {"model": {"wide": "auto"}})
    assert not without.model.has_wide_part
    with pytest.raises(UserError, match=r"\[labels\] has an unknown key 'sold'"):
        config_of(tmp_path, {"labels": {"order": None, "sold": {"weight": 2.0}}})
    with pytest.raises(UserError, match=r'\[labels.click\] group must be .* not "age"'):
        config_of(tmp_path, {"labels": {"click": {"group": "age"}}})
