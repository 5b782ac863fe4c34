import numpy as np
import pytest

USER = 0


def test_predictions_of_instances_and_candidates_agree(world):
    world.log.start_epoch()
    bias = np.array([0.0, 2.0], np.float32)
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]}, dense={"linear.bias": bias})
    client = world.serve()
    world.served(client, number)
    instances = [{"user_id": 1, "item_id": item, "last_items": [3, 4], "age": 30} for item in ("a", "b", 5)]
    answer = client.post("/v1/predict", json={"instances": instances})
    predictions = answer.json()["predictions"]
    assert answer.json()["version"] == number
    assert answer.headers["x-springtide-version"] == str(number)
    assert [sorted(prediction) for prediction in predictions] == [["click", "order"]] * 3
    assert all(0 < prediction["order"] < 1 for prediction in predictions)
    context = {"user_id": 1, "last_items": [3, 4], "age": 30}
    candidates = [{"item_id": item} for item in ("a", "b", 5)]
    again = client.post("/v1/predict", json={"context": context, "candidates": candidates})
    assert again.json()["predictions"] == predictions
    # user 1 has a row, the item and the two items of its list have none
    assert answer.headers["x-springtide-rows"] == again.headers["x-springtide-rows"] == "known=3, unknown=9"
    counted = client.get("/metrics").text
    assert 'springtide_predict_rows_total{status="known"} 6' in counted
    assert 'springtide_predict_rows_total{status="unknown"} 18' in counted
    assert client.post("/v1/predict", json={"instances": []}).json()["predictions"] == []
    # nothing is created
    assert client.get("/v1/embeddings/item_id/a").json()["status"] == "unknown"


def test_a_misspelt_feature_is_seen_in_what_is_missing(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    whole = {"user_id": 1, "item_id": "a", "last_items": [3], "age": 30, "genres": [7]} | {"click": 1, "x": "unused"}
    answer = client.post("/v1/predict", json={"instances": [whole, whole]})
    assert "x-springtide-missing" not in answer.headers
    others = [{**whole, "age": None}, {"usr_id": 1, "item_id": "a", "last_items": [], "genres": [7], "age": 3}]
    answer = client.post("/v1/predict", json={"instances": [whole, *others]})
    assert answer.headers["x-springtide-missing"] == "user_id=1, last_items=1, age=1"
    context = {"usr_id": 1, "age": 3, "genres": [7]}
    answer = client.post("/v1/predict", json={"context": context, "candidates": [{"item_id": 1}] * 2})
    assert answer.headers["x-springtide-missing"] == "user_id=2, last_items=2"
    counted = client.get("/metrics").text
    assert 'springtide_predict_missing_total{feature="user_id"} 3' in counted
    assert 'springtide_predict_missing_total{feature="age"} 1' in counted
    assert 'feature="item_id"' not in counted


@pytest.mark.parametrize(
    ("body", "status", "index"),
    [
        ({"instances": [{"user_id": 1}, {"user_id": [1]}]}, 422, 1),
        ({"instances": [{"user_id": 1}, 5]}, 422, 1),
        ({"instances": [{"age": "old"}]}, 422, 0),
        ({"instances": [{}] * 9}, 413, None),
        ({"instances": [{}], "candidates": [{}]}, 422, None),
        ({"instances": [{}], "context": {}}, 422, None),
        ({}, 422, None),
        ({"instances": 5}, 400, None),
        ([], 400, None),
    ],
)
def test_an_invalid_instance_is_reported_by_its_index(world, body, status, index):
    world.log.start_epoch()
    client = world.serve(max_instances=8)
    world.served(client, world.log.number)
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == status
    assert answer.json()["error"].get("index") == index
    assert set(answer.json()["error"]) >= {"code", "message", "hint"}
