def test_a_model_without_towers_is_a_clear_error(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    response = client.post("/v1/retrieve", json={"user": {"user_id": 1}})
    assert response.status_code == 422
    assert response.json()["error"]["code"] == "no_towers"
    assert 'name = "two_tower"' in response.json()["error"]["hint"]


def test_before_the_first_version_there_are_no_items(world):
    client = world.serve()
    response = client.post("/v1/retrieve", json={"user": {}})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
