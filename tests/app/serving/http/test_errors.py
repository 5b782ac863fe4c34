def test_every_error_response_has_the_same_form(world):
    client = world.serve(max_body_bytes=100)
    for answer, status in (
        (client.get("/v1/nothing"), 404),
        (client.put("/v1/predict"), 405),
        (client.get("/v1/versions?limit=x"), 422),
        (client.get("/v1/embeddings/user_id"), 422),
        (client.post("/v1/predict", content=b"x" * 101), 413),
        (client.post("/v1/embeddings/user_id", content=b"x" * 101), 413),
        (client.post("/v1/predict", content=(b"x" for _ in range(101))), 413),
        (client.post("/v1/embeddings/user_id", content=(b"x" for _ in range(101))), 413),
        (client.post("/v1/embeddings/user_id", content=b"", headers={"content-type": "text/csv"}), 415),
        (client.post("/v1/forget", json={}), 401),
        (client.get("/healthz", headers={"host": "evil.example"}), 421),
    ):
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
        assert answer.headers["content-type"] == "application/json"
