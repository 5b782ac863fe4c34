USER = 0


def test_the_server_starts_without_a_log_and_serves_it_once_it_exists(world):
    client = world.serve()
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_ready"
    assert answer.headers["retry-after"] == "1"
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/v1/status").json()["trainer"] == "stopped"
    head = client.head("/readyz")  # as monitors ask
    assert (head.status_code, head.headers["retry-after"], head.content) == (503, "1", b"")
    assert [client.head(path).status_code for path in ("/", "/healthz", "/metrics", "/v1/status")] == [200] * 4
    assert client.head("/v1/events").status_code == 405
    assert client.get("/v1/embeddings/user_id/1").status_code == 503
    assert client.post("/v1/embeddings/user_id", json={"ids": [1]}).status_code == 503
    assert client.get("/v1/bases/latest").status_code == 503
    assert client.get("/v1/log?after=0").status_code == 503
    world.log.start_epoch()
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]})
    world.served(client, number)
    assert client.get("/v1/embeddings/user_id/1").json()["vector"] == [1, 2, 3, 4]
