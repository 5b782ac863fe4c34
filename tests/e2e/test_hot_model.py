"""Inference processes follow the trainer: no call fails, versions only grow, and equal versions give equal numbers."""

import json
import os
import urllib.request

from springtide_client import HotModel

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import wait_until

NUM_VERSIONS = 100 if "TORTURE_EXAMPLES" in os.environ else 40
NUM_CHANGES = NUM_VERSIONS // 2


def test_predictions_follow_dozens_of_versions_without_a_failed_call(workspace) -> None:
    workspace.start_broker()
    workspace.produce(make_clicks(2_000))
    workspace.start("train", "--no-compact")
    workspace.start("serve")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    instances = [json.loads(value) for value in make_clicks(20, seed=9)]
    for instance in instances:
        del instance["click"]

    models = {"directory": HotModel(str(workspace.log)), "http": HotModel(workspace.url)}
    versions: dict[str, list[int]] = {name: [] for name in models}
    answered: dict[str, set[str]] = {name: set() for name in models}
    compared = dict.fromkeys(models, 0)
    seed = 100
    try:
        while any(len(set(versions[n])) < NUM_VERSIONS or len(answered[n]) < NUM_CHANGES for n in models):
            workspace.produce(make_clicks(20, seed=(seed := seed + 1)))
            for _ in range(5):
                for name, model in models.items():
                    before = model.version
                    answers = model.predict(instances)
                    after = model.version
                    versions[name] += [before, after]
                    answered[name].add(json.dumps(answers))
                    served = predict(workspace.url, instances)
                    if before == after == served["version"]:
                        assert served["predictions"] == answers
                        compared[name] += 1
    finally:
        for model in models.values():
            model.close()
    for name in models:
        assert versions[name] == sorted(versions[name])
        assert compared[name] > 10


def predict(url: str, instances: list[dict[str, object]]) -> dict[str, object]:
    """The server's answer."""
    body = json.dumps({"instances": instances}).encode()
    request = urllib.request.Request(url + "/v1/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        document: dict[str, object] = json.loads(answer.read())
        return document
