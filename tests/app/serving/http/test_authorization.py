import json

import pytest

from springtide.app.serving.api import ROUTES
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.authorization import Authorizer, is_local_name
from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.tokens import Tokens, load_tokens


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/", "public"),
        ("/healthz", "public"),
        ("/readyz", "public"),
        ("/docs", "public"),
        ("/v1/status", "read"),
        ("/metrics", "read"),
        ("/v1/embeddings/user_id", "read"),
        ("/v1/log", "read"),
        ("/v1/predict", "predict"),
        ("/v1/forget", "admin"),
        ("/v1/table/", "admin"),
        ("/v1/rollback", "admin"),
        ("/v1/commands/7", "admin"),
        ("/v1/commands/7/8", "admin"),
        ("/anything/else", "read"),
    ],
)
def test_every_path_has_a_scope(path, scope):
    assert ROUTES.scope_of(path) == scope


@pytest.mark.parametrize(
    "host", ["", "localhost", "localhost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:80", "a.localhost"]
)
def test_local_host_names_are_recognized(host):
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "10.0.0.1:80", "localhost.evil.example", "[::2]"]
)
def test_a_foreign_host_header_is_rejected_without_tokens(host):
    assert not is_local_name(host)
    guard = Authorizer(ServeConfig(), load_tokens(ServeConfig(), {}), ROUTES.scope_of)
    with pytest.raises(ApiError) as caught:
        guard.check("/v1/status", {"host": host})
    assert caught.value.status == 421
    with_token = Authorizer(ServeConfig(), Tokens({"a-long-token": frozenset({"read"})}), ROUTES.scope_of)
    with_token.check("/v1/status", {"host": host, "authorization": "Bearer a-long-token"})


def test_each_route_needs_a_token_of_its_scope(world, monkeypatch):
    monkeypatch.setenv("SPRINGTIDE_TOKENS", "read=reader-secret;predict=predict-secret;admin=admin-secret")
    world.log.start_epoch()
    client = world.serve()
    reader, admin = ({"Authorization": f"Bearer {name}-secret"} for name in ("reader", "admin"))
    assert client.get("/readyz").status_code in (200, 503)
    assert client.get("/").status_code == 200
    assert client.get("/v1/status").status_code == 401
    assert client.get("/v1/status").headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/status", headers=reader).status_code == 200
    assert client.post("/v1/predict", json={}, headers=reader).status_code == 403
    assert client.post("/v1/embeddings/user_id", json={"ids": []}).status_code == 401
    world.served(client, world.log.number)
    forget = {"feature": "user_id", "id": 5}
    refused = client.post("/v1/forget", json=forget, headers=admin)
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_supported_yet")
    assert not (world.log.path / "commands").exists()
    world.log.write_status(commands=["forget"])
    accepted = client.post("/v1/forget", json=forget, headers=admin)
    assert accepted.status_code == 202
    order = json.loads((world.log.path / "commands" / f"{accepted.json()['command']}.json").read_text())
    assert order["keys"] == [forget]
    assert client.post("/v1/forget", json=forget, headers=reader).status_code == 403
    assert client.post("/v1/rollback", json={"version": 5}, headers=admin).status_code == 501
    assert client.patch("/v1/table", json={"lr": 0.5}, headers=admin).status_code == 501
