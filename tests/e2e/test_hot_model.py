"""Inference processes follow the trainer: no call fails, versions only grow, and equal versions give equal numbers."""

import json
import urllib.request

from clicks import make_clicks
from conftest import wait_until
from springtide_client import HotModel

NUM_VERSIONS = 100


def test_predictions_follow_100_versions_without_a_failed_call(workspace) -> None:
    workspace.start_broker()
    workspace.produce(make_clicks(2_000))
    workspace.start("train")
    workspace.start("serve")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    instances = [json.loads(value) for value in make_clicks(20, seed=9)]
    for instance in instances:
        del instance["click"]

    with_directory, over_http = HotModel(str(workspace.log)), HotModel(workspace.url)
    try:
        for model in (with_directory, over_http):
            seen: list[int] = []
            predictions: set[tuple[float, ...]] = set()
            compared = 0
            seed = 100
            while len(set(seen)) < NUM_VERSIONS:
                workspace.produce(make_clicks(20, seed=(seed := seed + 1)))
                for _ in range(20):
                    before = model.version
                    answers = model.predict(instances)
                    seen.append(model.version)
                    predictions.add(tuple(answer["click"] for answer in answers))
                    if before != model.version:
                        continue
                    served = predict(workspace.url, instances)
                    if served["version"] == before:
                        assert served["predictions"] == answers
                        compared += 1
            assert seen == sorted(seen)
            assert len(predictions) > NUM_VERSIONS // 2
            assert compared > 10
    finally:
        with_directory.close()
        over_http.close()


def predict(url: str, instances: list[dict[str, object]]) -> dict[str, object]:
    """The server's answer."""
    body = json.dumps({"instances": instances}).encode()
    request = urllib.request.Request(url + "/v1/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        document: dict[str, object] = json.loads(answer.read())
        return document
