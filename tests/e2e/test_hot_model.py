"""HotModels follow the trainer: no call fails, versions only grow, and the same version gives the server's numbers."""

import json
from typing import Any

import pytest

from springtide_client import HotModel
from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.model_specs import LEAST_LABELS
from tests.support.model_variants import VARIANTS
from tests.support.scale import IS_LONG

NUM_VERSIONS = 100 if IS_LONG else 40
NUM_CHANGES = NUM_VERSIONS // 2


# `make torture`: every net, which the short form sees in tests/app/training/test_every_model.py
@pytest.mark.parametrize("net", VARIANTS if IS_LONG else ["dlrm"])
def test_predictions_follow_dozens_of_versions_without_a_failed_call(workspace: Workspace, net: str) -> None:
    config = VARIANTS[net]
    labels = {"label": None, "labels": ["click", "order"]} if config.name in LEAST_LABELS else {}
    workspace.configure({"model": {"name": config.name, "options": dict(config.options)}, "schema": labels})
    workspace.start_broker()
    workspace.produce(make_clicks(2_000))
    workspace.start("train", "--no-compact")
    workspace.start_server()
    instances = [json.loads(value) for value in make_clicks(20, seed=9)]
    for instance in instances:
        del instance["click"]

    models = {"directory": HotModel(str(workspace.log)), "http": HotModel(workspace.url)}
    versions: dict[str, list[int]] = {name: [] for name in models}
    predictions: dict[str, set[str]] = {name: set() for name in models}
    num_compared = dict.fromkeys(models, 0)
    seed = 100
    try:
        while any(len(set(versions[n])) < NUM_VERSIONS or len(predictions[n]) < NUM_CHANGES for n in models):
            workspace.produce(make_clicks(20, seed=(seed := seed + 1)))
            for _ in range(5):
                for name, model in models.items():
                    before = model.version
                    predicted: Any = model.predict(instances)
                    after = model.version
                    versions[name] += [before, after]
                    predictions[name].add(json.dumps(predicted))
                    code, served = workspace.request("POST", "/v1/predict", {"instances": instances}, token=None)
                    assert code == 200
                    if before == after == served["version"]:
                        assert served["predictions"] == predicted
                        num_compared[name] += 1
    finally:
        for model in models.values():
            model.close()
    for name in models:
        assert versions[name] == sorted(versions[name])
        assert num_compared[name] > 10
