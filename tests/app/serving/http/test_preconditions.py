import pytest

from springtide.app.serving.http.preconditions import Preconditions

USER = 0


def test_a_failed_precondition_is_503_on_every_read_route(world):
    world.log.start_epoch()
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]}, complete_until_ms=1_000)
    client = world.serve()
    world.served(client, number)
    old = {"X-Springtide-Max-Staleness-Ms": "500"}
    for ask in (
        lambda headers: client.get("/v1/embeddings/user_id/1", headers=headers),
        lambda headers: client.get("/v1/embeddings/user_id/1/neighbors", headers=headers),
        lambda headers: client.post("/v1/embeddings/user_id", json={"ids": [1]}, headers=headers),
        lambda headers: client.post("/v1/predict", json={"instances": [{}]}, headers=headers),
    ):
        assert ask({}).status_code == 200
        refused = ask(old)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_stale")
        assert refused.headers["retry-after"] == "1"
        refused = ask({"X-Springtide-Min-Version": str(number + 1)})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "version_not_reached")
        assert ask({"X-Springtide-Min-Version": str(number)}).status_code == 200
        assert ask({"X-Springtide-Min-Version": "soon"}).status_code == 400
    body = {"ids": [1], "max_staleness_ms": 500}
    assert client.post("/v1/embeddings/user_id", json=body).status_code == 503
    newer = world.log.publish()
    world.served(client, newer)
    assert client.get("/v1/embeddings/user_id/1", headers={"X-Springtide-Max-Staleness-Ms": "60000"}).status_code == 200
    assert 'springtide_requests_rejected_total{reason="max_staleness"} 5' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("preconditions", "code"),
    [
        (Preconditions(), None),
        (Preconditions(min_version=7), None),
        (Preconditions(min_version=8), "version_not_reached"),
        (Preconditions(max_staleness_ms=50), None),
        (Preconditions(max_staleness_ms=49), "too_stale"),
        (Preconditions(max_staleness_ms=100).with_max_staleness(49), "too_stale"),
        (Preconditions(max_staleness_ms=49).with_max_staleness(100), "too_stale"),
        (Preconditions().with_max_staleness(None), None),
    ],
)
def test_version_7_of_staleness_50_ms_is_checked(preconditions, code):
    violation = preconditions.violation(7, lambda: 50)
    assert (violation.code if violation else None) == code


def test_an_unknown_staleness_violates_any_limit():
    assert Preconditions(max_staleness_ms=1e9).violation(7, lambda: None).code == "too_stale"
    assert Preconditions(min_version=7).violation(7, lambda: None) is None
